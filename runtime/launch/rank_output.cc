#include "runtime/launch/rank_output.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/strings.h"

namespace capstan {

void RankOutput::Add(int rank, Fd out, Fd err) {
  for (Fd* fd : {&out, &err}) {
    ::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  }
  sources_.push_back({rank, 0, std::move(out), {}});
  sources_.push_back({rank, 1, std::move(err), {}});
}

void RankOutput::Watch(std::vector<pollfd>* fds) const {
  for (const Source& s : sources_) {
    if (targets_[s.target].pending.size() < kMostPending) fds->push_back({s.fd.get(), POLLIN, 0});
  }
  for (const Target& t : targets_) {
    if (!t.pending.empty()) fds->push_back({t.fd, POLLOUT, 0});
  }
}

void RankOutput::Handle() {
  for (Source& s : sources_) {
    if (targets_[s.target].pending.size() < kMostPending) Read(s);
  }
  sources_.remove_if([](const Source& s) { return !s.fd.open(); });
  for (Target& t : targets_) Write(t);
}

void RankOutput::Read(Source& source) {
  char piece[65536];
  while (source.fd.open() && targets_[source.target].pending.size() < kMostPending) {
    const ssize_t n = ::read(source.fd.get(), piece, sizeof(piece));
    if (n > 0) {
      Take(source, {piece, static_cast<size_t>(n)});
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      if (!source.line.empty()) EmitLine(source, source.line);
      source.line.clear();
      source.fd.Close();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void RankOutput::Take(Source& source, std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      source.line.append(bytes);
      bytes = {};
      if (source.line.size() < kLongestLine) return;
    } else {
      source.line.append(bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
    }
    EmitLine(source, source.line);
    source.line.clear();
  }
}

void RankOutput::EmitLine(const Source& source, std::string_view line) {
  Target& target = targets_[source.target];
  if (!target.broken) StrAppend(&target.pending, "[rank ", source.rank, "] ", line, "\n");
}

void RankOutput::Finish(int rank) {
  for (Source& s : sources_) {
    if (s.rank != rank) continue;
    // A pipe holds 64 KiB; a process the rank left behind must not keep this going for ever.
    char piece[65536];
    for (int i = 0; i < 64; ++i) {
      const ssize_t n = ::read(s.fd.get(), piece, sizeof(piece));
      if (n <= 0) break;
      Take(s, {piece, static_cast<size_t>(n)});
    }
    if (!s.line.empty()) EmitLine(s, s.line);
    s.fd.Close();
  }
  sources_.remove_if([](const Source& s) { return !s.fd.open(); });
}

void RankOutput::Say(std::string_view line) {
  if (!targets_[1].broken) StrAppend(&targets_[1].pending, line, "\n");
}

// The descriptors may be shared with others, so they stay blocking: writes only what poll(2) says
// there is room for, a page at a time.
void RankOutput::Write(Target& target) {
  while (!target.pending.empty() && !target.broken) {
    pollfd ready{target.fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return;
    const ssize_t n = ::write(target.fd, target.pending.data(),
                              std::min<size_t>(target.pending.size(), PIPE_BUF));
    if (n > 0) {
      target.pending.erase(0, static_cast<size_t>(n));
    } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
      target.broken = true;
      target.pending.clear();
    }
  }
}

bool RankOutput::Flush(double seconds) {
  const SteadyTime deadline = InSeconds(seconds);
  for (;;) {
    std::vector<pollfd> waiting;
    for (Target& t : targets_) {
      Write(t);
      if (!t.pending.empty()) waiting.push_back({t.fd, POLLOUT, 0});
    }
    if (waiting.empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    ::poll(waiting.data(), waiting.size(), MillisecondsUntil(deadline));
  }
}

}  // namespace capstan
