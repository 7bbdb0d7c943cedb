"""C++ programs through the pool: what they read and write, and the limits that end them."""

import signal

import pytest

from rocstar.sandbox.pool.process import PLACES
from rocstar.sandbox.types import Status

from .compiling import HEADERS, MARKS, Run

pytestmark = MARKS

# --- ordinary programs ------------------------------------------------------------------------------------


async def test_a_program_reads_its_input_and_writes_its_output(run: Run) -> None:
    result = await run(
        "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n';"
        ' std::cerr << "log"; }',
        stdin="3 4\n",
    )
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "7\n", "log")
    assert 0.0 < result.wall_s < 4.0


@pytest.mark.parametrize(
    ("body", "status", "exit_code", "signum"),
    [
        ("return 3;", Status.ERROR, 3, None),
        ("std::exit(86 + 256);", Status.MEMORY_LIMIT, 86, None),
        ("std::abort();", Status.SIGNALED, None, signal.SIGABRT),
        ("raise(SIGTERM);", Status.SIGNALED, None, signal.SIGTERM),
        ("*(volatile int*)nullptr = 1;", Status.SIGNALED, None, signal.SIGSEGV),
        ("throw 1;", Status.SIGNALED, None, signal.SIGABRT),
        ("std::exit(125);", Status.ERROR, 125, None),
    ],
)
async def test_a_program_ends_as_it_ends(
    run: Run, body: str, status: Status, exit_code: int | None, signum: int | None
) -> None:
    result = await run(f"{HEADERS}\nint main() {{ {body} }}")
    assert (result.status, result.exit_code, result.signal) == (status, exit_code, signum)


@pytest.mark.parametrize("mib", [256, 1024])
async def test_sixty_four_threads_start_at_every_memory_limit(run: Run, mib: int) -> None:
    code = (
        "#include <atomic>\n#include <iostream>\n#include <thread>\n#include <vector>\n"
        "int main() { std::atomic<int> n{0}; std::vector<std::thread> all; for (int t = 0; t < 64; ++t)"
        " all.emplace_back([&n] { delete new int; ++n; while (n < 64) std::this_thread::yield(); });"
        " for (auto& one : all) one.join(); std::cout << n; }"
    )
    result = await run(code, memory_bytes=mib << 20, wall_s=30.0, cpu_s=30)
    assert (result.status, result.stdout) == (Status.OK, "64"), result.stderr


async def test_the_places_that_programs_expect_are_its_own(run: Run) -> None:
    result = await run(
        "#include <cstdio>\n#include <cstdlib>\n#include <filesystem>\n"
        "#include <fstream>\n#include <iostream>\n"
        "namespace fs = std::filesystem;\nint main() { std::string word;"
        ' for (std::string at : {"/mnt/data", "/tmp", "/var/tmp", "/dev/shm"}) {'
        ' std::ofstream(at + "/x") << at; std::ifstream(at + "/x") >> word;'
        ' std::cout << word << fs::file_size(at + "/x") << "\\n"; }'
        ' std::cout << fs::exists("x") << (fs::canonical("/tmp/x") == fs::current_path() / ".tmp/x");'
        ' char file[] = "/tmp/aXXXXXX", folder[] = "/tmp/bXXXXXX";'
        " std::cout << (mkstemp(file) >= 0 && fs::exists(file)) << (mkdtemp(folder) == folder)"
        " << fs::is_directory(folder) << (tmpfile() != nullptr);"
        ' std::cout << (freopen("/tmp/x", "r", stdin) != nullptr);'
        " std::cin >> word; std::cout << word; }"
    )
    expected = "/mnt/data9\n/tmp4\n/var/tmp8\n/dev/shm8\n1111111/dev/shm"
    assert (result.status, result.stdout) == (Status.OK, expected), result.stderr


async def test_a_program_starts_with_an_empty_directory_to_write_in(run: Run) -> None:
    result = await run(
        "#include <filesystem>\n#include <fstream>\n#include <iostream>\nnamespace fs = std::filesystem;\n"
        'int main() { std::cout << std::distance(fs::directory_iterator("."), {});'
        ' std::ofstream("note") << "kept"; std::string word; std::ifstream("note") >> word;'
        ' std::cout << word; fs::create_directory("d"); fs::rename("note", "d/note");'
        ' std::cout << fs::exists("d/note"); }'
    )
    assert (result.status, result.stdout) == (Status.OK, "0kept1"), result.stderr


async def test_a_program_may_create_so_many_files_and_no_more(run: Run) -> None:
    code = (
        "#include <fstream>\n#include <iostream>\n#include <string>\nint main() { int made = 0;"
        ' while (made < 100 && std::ofstream("f" + std::to_string(made)) << "x") ++made; std::cout << made; }'
    )
    assert (await run(code, files=8)).stdout == "8"
    assert (await run(code, files=0)).stdout == "0"


async def test_a_program_sees_its_own_environment_and_descriptors_only(run: Run) -> None:
    result = await run(
        f"{HEADERS}\nextern char** environ;\nint main() {{ for (char** e = environ; *e; ++e) puts(*e);"
        ' for (int fd = 0; fd < 64; ++fd) if (fcntl(fd, F_GETFD) >= 0) printf("%d", fd); }'
    )
    *words, descriptors = result.stdout.split("\n")
    found = dict(word.split("=", 1) for word in words)
    home = found["HOME"]
    assert home.startswith("/") and found == {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "LD_PRELOAD": str(PLACES),
        "ROCSTAR_HOME": home,
    }
    assert descriptors == "012"


@pytest.mark.parametrize("number", [1, 400])
async def test_warnings_are_not_the_programs_output(run: Run, number: int) -> None:
    """However many: they are no error, either."""
    code = "\n".join(f"#warning {'w' * 80} {line}" for line in range(number)) + "\nint main() {}"
    result = await run(code, output_bytes=100)
    assert (result.status, result.stderr) == (Status.OK, "")


async def test_large_output_is_cut_and_a_flood_killed(run: Run) -> None:
    loop = '#include <cstdio>\nint main() {{ for (long i = 0; {}; ++i) puts("0123456789"); }}'
    cut = await run(loop.format("i < 1000"), output_bytes=4096)
    assert (cut.status, cut.stdout_truncated) == (Status.OK, True)
    flood = await run(loop.format("true"), output_bytes=4096)
    assert flood.status is Status.OUTPUT_LIMIT


# --- limits of the program --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "signum"), [({"wall_s": 0.3}, signal.SIGKILL), ({"wall_s": 30.0, "cpu_s": 1}, signal.SIGXCPU)]
)
async def test_an_endless_loop_ends_by_the_clock_or_cpu_time(run: Run, limits: dict[str, float], signum: int) -> None:
    result = await run("int main() { for (volatile int i = 0;; i = i + 1) {} }", **limits)
    assert (result.status, result.signal) == (Status.TIMEOUT, signum)
    assert result.wall_s >= 0.3


async def test_the_clock_starts_with_the_program(run: Run) -> None:
    """The compilation takes longer than the program may."""
    code = '#include <bits/stdc++.h>\nint main() { return std::regex_match("aab", std::regex("a+b")) ? 0 : 1; }'
    result = await run(code, wall_s=1.0)
    assert result.status is Status.OK


async def test_memory_is_limited(run: Run) -> None:
    code = (
        "#include <cstdio>\n#include <cstdlib>\n#include <cstring>\n"
        "int main() { long got = 0; while (got < 4096) {"
        " void* block = malloc(1 << 20); if (!block) break; memset(block, 1, 1 << 20); ++got; }"
        ' printf("%ld", got); }'
    )
    result = await run(code, memory_bytes=64 << 20)
    assert result.status is Status.OK
    assert 32 <= int(result.stdout) < 96
    assert result.peak_memory_bytes >= int(result.stdout) << 20
    thrown = await run("#include <vector>\nint main() { std::vector<char> v(1L << 40); return v.size() > 1; }")
    assert (thrown.status, thrown.signal) == (Status.SIGNALED, signal.SIGABRT)
    assert "std::bad_alloc" in thrown.stderr


async def test_a_stack_overflow_is_a_signal(run: Run) -> None:
    result = await run(
        "int deep(volatile int* above) { volatile int here[256]; here[0] = *above;"
        " return deep(here) + here[0]; }\n"
        "int main() { volatile int start = 1; return deep(&start); }"
    )
    assert (result.status, result.signal) == (Status.SIGNALED, signal.SIGSEGV)


async def test_a_file_grows_no_larger_than_its_limit(run: Run) -> None:
    result = await run(
        f'{HEADERS}\nint main() {{ int fd = open("f", O_CREAT | O_WRONLY, 0600); static char block[4096];'
        " for (int i = 0; i < 1000; ++i) if (write(fd, block, sizeof block) < 0) return 1; }",
        file_bytes=64 << 10,
    )
    assert (result.status, result.signal) == (Status.SIGNALED, signal.SIGXFSZ)
