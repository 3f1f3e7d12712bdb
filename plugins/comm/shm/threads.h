// Threads that leave the host's signals alone.
#ifndef CAPSTAN_PLUGINS_COMM_SHM_THREADS_H_
#define CAPSTAN_PLUGINS_COMM_SHM_THREADS_H_

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace capstan::shm {

// A thread named `name` that takes no signals.
template <class Body>
std::thread quiet_thread(const char* name, Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Body>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread.native_handle(), name);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace capstan::shm

#endif  // CAPSTAN_PLUGINS_COMM_SHM_THREADS_H_
