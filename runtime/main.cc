// The capstan command.
#include "runtime/cli/cli.h"

int main(int argc, char** argv) { return capstan::RunCommandLine(argc, argv); }
