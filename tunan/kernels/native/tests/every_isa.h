// The main of the programs that hold a file of cases against what this CPU computes.
#pragma once

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace tunan {

// Calls run_all(file, isa, threads), which returns how many cases are wrong, for every instruction
// set of this CPU with one thread and with three. Returns the program's exit status.
template <typename RunAll>
int on_every_isa(int argc, char** argv, const char* program, RunAll run_all) {
    std::ifstream stream(argc == 2 ? argv[1] : "", std::ios::binary);
    if (!stream) {
        std::fprintf(stderr, "usage: %s FILE\n", program);
        return 2;
    }
    const std::vector<char> file{std::istreambuf_iterator<char>(stream), {}};
    std::istringstream isas(tunan_isa_supported());
    int wrong = 0;
    for (std::string isa; std::getline(isas, isa, ',');) {
        tunan_isa_select(isa.c_str());
        for (const int threads : {1, 3}) {
            tunan_pool_configure(threads, nullptr, 20);
            wrong += run_all(file, isa, threads);
        }
    }
    return wrong ? 1 : 0;
}

}  // namespace tunan
