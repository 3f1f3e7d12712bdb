// An instance of a component, destroyed with its owner.
#pragma once

#include <utility>

namespace capstan {

// Every vtable has `void (*destroy)(void*)`. Movable, not copyable.
template <typename Vtable>
class Owned {
 public:
  Owned() = default;
  Owned(const Vtable* vtable, void* self) : vtable_(vtable), self_(self) {}
  ~Owned() {
    if (self_ != nullptr) vtable_->destroy(self_);
  }
  Owned(Owned&& other) noexcept { *this = std::move(other); }
  Owned& operator=(Owned&& other) noexcept {
    std::swap(vtable_, other.vtable_);
    std::swap(self_, other.self_);
    return *this;
  }
  const Vtable* operator->() const { return vtable_; }
  const Vtable* vtable() const { return vtable_; }
  void* self() const { return self_; }
  explicit operator bool() const { return vtable_ != nullptr; }

 private:
  const Vtable* vtable_ = nullptr;
  void* self_ = nullptr;
};

}  // namespace capstan
