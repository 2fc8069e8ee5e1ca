// A program that only holds the precompiled headers of the test programs. GCC accepts a precompiled header only from a
// target with the same options, which are those of a program.
int main() {}
