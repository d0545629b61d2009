"""GGUF files on llama.cpp, by the functions of its library that llama-cpp-python binds. `file` refuses files before
llama.cpp reads them, `cells` has the KV cells and the sequences that see them, `rows` says to which sequences the rows
of a draft belong."""
