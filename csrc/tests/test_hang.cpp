// A zygote that hangs is killed when a child has waited too long for its birth (kBirthGrace): half a minute, most of
// it asleep.
#include "check.h"
#include "fake_pool.h"
#include "process.h"
#include "supervise.h"

using namespace rocstar;
using namespace rocstar::fake;

int main(int argc, char** argv) {
  if (is_zygote(argc, argv)) return zygote_main();
  Pool pool({.max_live = 2, .max_sessions = 1});
  const uint64_t session = pool.opened();
  const pid_t first = pool.zygote();
  CHECK(kill(first, SIGSTOP) == 0);
  const uint64_t program = pool.run("exit 5");
  CHECK(pool.run_cell(session, "set 1").ok());  // sessions do not need it
  CHECK(pool.answer(program).code == 5);
  CHECK(pool.zygote(2) != first && !lives(first));
}
