#include "first_objects.h"

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "check.h"

namespace {

using rocstar::FirstObjects;

// Against a model that knows every block in use: none overlaps another, and each holds what was written to it.
void blocks_are_their_owners(unsigned seed) {
  auto objects = std::make_unique<FirstObjects>();
  std::mt19937 random(seed);
  std::map<char*, std::pair<size_t, char>> used;  // from the first byte: how many, and what they hold
  size_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (used.empty() || random() % 5 < 3) {
      const size_t bytes = random() % (FirstObjects::kLargest + 40);
      auto* const block = static_cast<char*>(objects->take(bytes));
      CHECK(block == nullptr || bytes <= FirstObjects::kLargest);
      if (block == nullptr) {
        ++refused;
        continue;
      }
      CHECK(objects->owns(block) && reinterpret_cast<uintptr_t>(block) % FirstObjects::kStep == 0);
      const size_t room = objects->room(block);
      CHECK(room >= bytes && room < bytes + FirstObjects::kStep + (bytes == 0));
      CHECK(objects->owns(block + room - 1));
      const auto next = used.lower_bound(block);
      CHECK(next == used.end() || next->first >= block + room);
      CHECK(next == used.begin() || std::prev(next)->first + std::prev(next)->second.first <= block);
      const char mark = static_cast<char>(random());
      std::memset(block, mark, room);
      used[block] = {room, mark};
    } else {
      const auto chosen = std::next(used.begin(), static_cast<long>(random() % used.size()));
      const auto [room, mark] = chosen->second;
      CHECK(objects->room(chosen->first) == room);
      for (size_t i = 0; i < room; ++i) CHECK(chosen->first[i] == mark);
      objects->give(chosen->first);
      used.erase(chosen);
    }
  }
  CHECK(refused > 0);
}

void it_owns_nothing_else() {
  auto objects = std::make_unique<FirstObjects>();
  const int local = 0;
  CHECK(!objects->owns(nullptr) && !objects->owns(&local) && !objects->owns(objects.get()));
  CHECK(!objects->owns(reinterpret_cast<char*>(objects.get()) + sizeof *objects));
}

// A size takes what is left, and has as much again when it was given back.
void what_was_given_back_is_next() {
  auto objects = std::make_unique<FirstObjects>();
  std::vector<void*> blocks;
  while (void* const block = objects->take(200)) blocks.push_back(block);
  CHECK(blocks.size() == FirstObjects::kBytes / FirstObjects::kChunk * (FirstObjects::kChunk / 208));
  CHECK(objects->take(16) == nullptr);
  objects->give(blocks[7]);
  CHECK(objects->take(193) == blocks[7] && objects->take(200) == nullptr);
}

// What a program needs first lies in few pages, whatever its sizes are.
void sizes_share_pages() {
  auto objects = std::make_unique<FirstObjects>();
  uintptr_t least = UINTPTR_MAX, most = 0;
  for (size_t bytes = 16; bytes <= 320; bytes += 16) {
    const auto at = reinterpret_cast<uintptr_t>(objects->take(bytes));
    least = std::min(least, at);
    most = std::max(most, at + bytes);
  }
  CHECK(most - least <= 20 * FirstObjects::kChunk);
}

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 20; ++seed) blocks_are_their_owners(seed);
  it_owns_nothing_else();
  what_was_given_back_is_next();
  sizes_share_pages();
}
