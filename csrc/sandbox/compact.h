// Holds the interpreter's memory in few mappings of huge pages, so that a fork copies almost no page table and the
// child takes no fault for code it only reads.
#pragma once

#include <cstdint>

namespace rocstar {

// Moves private memory (heaps, libraries' code and data) into anonymous huge pages at the same addresses. Call it
// once, with one thread, when nothing more will be loaded. Returns the bytes moved; 0 where it cannot be done (other
// threads, no executable anonymous memory, a sanitizer), and everything then works as before.
//
// A run of mappings becomes one mapping that is readable, writable and executable: with different rights side by
// side a huge page cannot be. That guards nothing here, since every child may map executable memory itself.
uint64_t compact_memory();

// Gives the C library's free memory to nobody, but for its end. Free blocks lie here and there between others: a child
// that asks for ten pieces of memory would change ten pages, and where the library sorts its free blocks, as it does
// when somebody asks for much, one for each of them. What is at the end lies together. Call it when nothing more is to
// be freed.
void use_up_free_memory();

}  // namespace rocstar
