// The C face of a Program: service "capstan.program/1", and ops defined by plugins.
#pragma once

#include <memory>

#include "plugin_api/ops.h"
#include "plugin_api/program.h"
#include "runtime/program/program.h"

namespace capstan {

// The const table a plugin gets for CAPSTAN_PROGRAM_SERVICE.
const capstan_program_service* ProgramService();

// The handle under which one Program is lent to plugins. Borrows the Program; keep it alive for the
// length of the call that lends it.
class ProgramHandle {
 public:
  explicit ProgramHandle(Program& program);
  ~ProgramHandle();
  ProgramHandle(const ProgramHandle&) = delete;
  ProgramHandle& operator=(const ProgramHandle&) = delete;
  capstan_program* get() const { return handle_.get(); }

 private:
  std::unique_ptr<capstan_program> handle_;
};

}  // namespace capstan
