// Compiles one kernel for the library beside it (core/nvrtc_process.h); not for people.
#include <unistd.h>

#include <cstdio>

#include "core/nvrtc_process.h"

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("mercer-nvrtc: takes one word, the file of NVRTC, and is called by Mercer alone.\n", stderr);
    return 2;
  }
  return mercer::serve_nvrtc(words[1], STDIN_FILENO, STDOUT_FILENO);
}
