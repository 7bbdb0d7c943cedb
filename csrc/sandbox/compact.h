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

// Puts the C library's free memory in order. The library does so when somebody next asks for much, and writes to the
// head of each free block: left to them, every child would copy all of those pages. Call it when nothing more is to be
// freed.
void sort_free_memory();

}  // namespace rocstar
