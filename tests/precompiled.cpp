// The precompiled headers of the test programs belong to this program. GCC uses a precompiled header only if it was
// compiled with the same options as the test. This target is therefore a program too, and not a library.
int main() {}
