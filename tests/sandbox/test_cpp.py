"""C++ programs through the pool: what they end in, what a compiler may see, what hostile ones try, and that
nothing of either is left."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rocstar.sandbox import cpp, proctree
from rocstar.sandbox.cpp import CppOptions
from rocstar.sandbox.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, ExecResult, Limits, SandboxError, Status

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not cpp.offered(), reason="needs g++, Landlock and seccomp user notification"),
]

Run = Callable[..., Awaitable[ExecResult]]

BREACH = Path("/tmp/rocstar-breach-cpp")

# Doubles its work with each level: the compiler needs far longer than any limit here.
SLOW_TO_COMPILE = """
template <int N, int M> struct Tree {
  static const long v = Tree<N - 1, 2 * M>::v + Tree<N - 1, 2 * M + 1>::v;
};
template <int M> struct Tree<0, M> { static const long v = M; };
int main() { return Tree<24, 1>::v; }
"""

HEADERS = """
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
"""


def runner(pool: SandboxPool) -> Run:
    async def run(code: str, *, stdin: str = "", **limits: Any) -> ExecResult:
        request = ExecRequest(code=code, stdin=stdin, limits=Limits(**limits), flavour="cpp")
        return await pool.run(request)

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool(("cpp",)) as pool:
        yield pool


@pytest.fixture(scope="module")
def run(pool: SandboxPool) -> Run:
    return runner(pool)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quick(pool: SandboxPool) -> AsyncIterator[SandboxPool]:
    """A pool whose compilations are cut short."""
    async with SandboxPool(("cpp",), compile_s=0.6, without=("namespaces",)) as pool:
        yield pool


def compilers(pool: SandboxPool) -> list[int]:
    """Processes of the pool that are neither its supervisor nor a zygote."""
    known = {pool.supervisor_pid, *(pid for pids in pool.zygotes.values() for pid in pids)}
    return [process.pid for process in proctree.tree([pool.supervisor_pid]) if process.pid not in known]


async def until(true: Callable[[], object], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110 (the end of a process that is not ours to wait for)
            await asyncio.sleep(0.005)


def breached() -> bool:
    return BREACH.exists()


def is_compile_error(result: ExecResult) -> bool:
    ended = (result.status, result.exit_code, result.wall_s, result.stdout, result.value)
    return ended == (Status.ERROR, 1, 0.0, "", None) and result.stderr != ""


# --- ordinary programs ------------------------------------------------------------------------------------


async def test_a_program_reads_its_input_and_writes_its_output(run: Run) -> None:
    result = await run(
        "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n';"
        ' std::cerr << "log"; }',
        stdin="3 4\n",
    )
    assert (result.status, result.stdout, result.stderr) == (Status.OK, "7\n", "log")
    assert 0.0 < result.wall_s < 4.0


async def test_without_input_there_is_none(run: Run) -> None:
    result = await run("#include <iostream>\nint main() { char c; return std::cin.get(c) ? 1 : 0; }")
    assert result.status is Status.OK


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


async def test_threads_run(run: Run) -> None:
    result = await run(
        "#include <iostream>\n#include <thread>\n#include <vector>\n"
        "int main() { std::vector<std::thread> all; long sums[4] = {};"
        " for (int t = 0; t < 4; ++t) all.emplace_back([&sums, t] {"
        " for (int i = 0; i < 1000; ++i) sums[t] += i; }); for (auto& one : all) one.join();"
        " std::cout << sums[0] + sums[1] + sums[2] + sums[3]; }"
    )
    assert (result.status, result.stdout) == (Status.OK, "1998000")


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
    assert result.stdout == "PATH=/usr/local/bin:/usr/bin:/bin\nLANG=C.UTF-8\nTMPDIR=.\n012"


async def test_warnings_are_not_the_programs_output(run: Run) -> None:
    result = await run('#warning "look"\nint main() { return 0; }')
    assert (result.status, result.stderr) == (Status.OK, "")


async def test_many_warnings_are_no_error(run: Run) -> None:
    code = "\n".join(f"#warning {'w' * 80} {line}" for line in range(400)) + "\nint main() {}"
    assert (await run(code, output_bytes=100)).status is Status.OK


async def test_large_output_is_cut_and_a_flood_killed(run: Run) -> None:
    loop = '#include <cstdio>\nint main() {{ for (long i = 0; {}; ++i) puts("0123456789"); }}'
    cut = await run(loop.format("i < 1000"), output_bytes=4096)
    assert (cut.status, cut.stdout_truncated) == (Status.OK, True)
    flood = await run(loop.format("true"), output_bytes=4096)
    assert flood.status is Status.OUTPUT_LIMIT


async def test_calls_side_by_side_do_not_meet(pool: SandboxPool) -> None:
    requests = [
        ExecRequest(code=f'#include <cstdio>\nint main() {{ printf("%d", {n}); }}', flavour="cpp")
        for n in range(6)
    ]
    outcomes = {index: outcome async for index, outcome in pool.run_batch(requests)}
    shown = {index: outcome.stdout for index, outcome in outcomes.items() if isinstance(outcome, ExecResult)}
    assert shown == {n: str(n) for n in range(6)}


# --- limits of the program --------------------------------------------------------------------------------


async def test_an_endless_loop_ends_by_the_wall_clock(run: Run) -> None:
    result = await run("int main() { for (volatile int i = 0;; i = i + 1) {} }", wall_s=0.3)
    assert (result.status, result.signal) == (Status.TIMEOUT, signal.SIGKILL)
    assert result.wall_s >= 0.3


async def test_an_endless_loop_ends_by_cpu_time(run: Run) -> None:
    result = await run("int main() { for (volatile int i = 0;; i = i + 1) {} }", wall_s=30.0, cpu_s=1)
    assert (result.status, result.signal) == (Status.TIMEOUT, signal.SIGXCPU)


async def test_the_clock_starts_with_the_program(run: Run) -> None:
    """The compilation takes longer than the program may."""
    code = (
        '#include <bits/stdc++.h>\nint main() { return std::regex_match("aab", std::regex("a+b")) ? 0 : 1; }'
    )
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
    thrown = await run(
        "#include <vector>\nint main() { std::vector<char> v(1L << 40); return v.size() > 1; }"
    )
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


# --- hostile programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attempt",
    [
        "fork()",
        "vfork()",
        "syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)",
        'system("/bin/true") == 0 ? 0 : -1',
        'execl("/bin/sh", "sh", "-c", "echo breach", (char*)nullptr)',
        'execl("./program", "program", (char*)nullptr)',
        'syscall(SYS_execveat, AT_FDCWD, "/bin/true", nullptr, nullptr, 0)',
        'syscall(SYS_execveat, open("/bin/true", O_PATH), "", nullptr, nullptr, AT_EMPTY_PATH)',
        'syscall(SYS_execveat, open("/usr/lib/os-release", O_RDONLY), "", nullptr, nullptr, AT_EMPTY_PATH)',
        "socket(AF_INET, SOCK_STREAM, 0)",
        "socket(AF_UNIX, SOCK_STREAM, 0)",
        'open("/etc/passwd", O_RDONLY)',
        'open("/etc/hostname", O_RDONLY)',
        'open("/root", O_RDONLY)',
        'open("/proc/self/environ", O_RDONLY)',
        'open("/usr/bin/g++", O_RDONLY)',
        'open("/usr/include/stdio.h", O_RDONLY)',
        'open("main.cpp", O_RDONLY)',
        'open("/tmp/rocstar-breach-cpp", O_CREAT | O_WRONLY, 0600)',
        'open("../breach", O_CREAT | O_WRONLY, 0600)',
        'mkdir("/tmp/rocstar-breach-cpp", 0700)',
        'symlink("/etc/passwd", "link")',
        'mkfifo("fifo", 0600)',
        'chmod("/tmp", 0777)',
        "kill(getppid(), SIGKILL)",
        "kill(-1, SIGKILL)",
        "kill(0, SIGKILL)",
        "setsid()",
        "setpgid(0, 0)",
        "prctl(PR_SET_PDEATHSIG, 0)",
        "prctl(PR_SET_DUMPABLE, 1)",
        "prctl(PR_SET_CHILD_SUBREAPER, 1)",
        "fcntl(0, F_SETOWN, getppid())",
        'syscall(SYS_memfd_create, "x", 0)',
        "setrlimit(RLIMIT_STACK, &unlimited)",
        "setrlimit(RLIMIT_AS, &unlimited)",
        "setuid(0)",
    ],
)
async def test_a_program_may_not(run: Run, attempt: str) -> None:
    result = await run(
        f"{HEADERS}\nint main() {{ rlimit unlimited{{RLIM_INFINITY, RLIM_INFINITY}}; (void)unlimited;"
        f' errno = 0; long got = {attempt}; printf("%s", got < 0 ? "refused" : "BREACH"); }}'
    )
    assert (result.status, result.stdout) == (Status.OK, "refused"), result.stderr
    assert not breached()


@pytest.mark.parametrize("call", ["SYS_ptrace", "SYS_unshare", "SYS_mount", "SYS_bpf", "SYS_io_uring_setup"])
async def test_no_honest_program_calls(run: Run, call: str) -> None:
    result = await run(f"{HEADERS}\nint main() {{ return syscall({call}, 0, 0, 0, 0, 0); }}")
    assert (result.status, result.signal) == (Status.DENIED, signal.SIGSYS)


async def test_a_file_of_ones_own_cannot_be_executed(run: Run) -> None:
    result = await run(
        f'{HEADERS}\nint main() {{ int fd = open("f", O_CREAT | O_RDWR, 0700); write(fd, "\\x7f" "ELF", 4);'
        ' close(fd); fd = open("f", O_RDONLY); char name[] = "f"; char* arguments[] = {name, nullptr};'
        ' syscall(SYS_execveat, fd, "", arguments, nullptr, AT_EMPTY_PATH); perror("exec"); }'
    )
    assert "exec: Permission denied" in result.stderr


# --- hostile sources --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("int main() { return x; }", "'x' was not declared"),
        ("", "undefined reference to `main'"),
        ("int main( {", "error:"),
        ("\0\xff", "error:"),
        ("#include <no/such/header>\nint main() {}", "no/such/header: No such file"),
        ('#include "/etc/passwd"\nint main() {}', "/etc/passwd: Permission denied"),
        ("#include </etc/hostname>\nint main() {}", "/etc/hostname: Permission denied"),
        ("#include </proc/self/environ>\nint main() {}", "/proc/self/environ: Permission denied"),
        ('#include "/dev/urandom"\nint main() {}', "/dev/urandom: Permission denied"),
        ('#include "main.cpp"\nint main() {}', "nested"),
        ('asm(".incbin \\"/etc/passwd\\"");\nint main() {}', "/etc/passwd"),
        ('asm(".include \\"/proc/self/environ\\"");\nint main() {}', "/proc/self/environ"),
        ("#pragma GCC poison main\nint main() {}", 'poisoned "main"'),
        ('#error "stop"', "stop"),
        ("template <int N> struct A { A<N + 1> a; };\nA<0> a;\nint main() {}", "instantiation depth"),
        ("constexpr int f(int n) { for (;;) n += 1; }\nconstexpr int x = f(1);\nint main() {}", "error:"),
        ("char a[1L << 40] = {1};\nint main() {}", "error"),
        ("char a[1500000000] = {1};\nint main() {}", "File size limit exceeded"),
    ],
)
async def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_text(
    run: Run, source: str, text: str
) -> None:
    result = await run(source)
    assert is_compile_error(result), result
    assert text in result.stderr.replace("\N{LEFT SINGLE QUOTATION MARK}", "'").replace(
        "\N{RIGHT SINGLE QUOTATION MARK}", "'"
    )
    assert "root:" not in result.stderr


async def test_many_messages_are_cut_in_the_middle(run: Run) -> None:
    source = "\n".join(f"int first_{n} = missing_{n};" for n in range(2000)) + "\nint main() {}"
    result = await run(source, output_bytes=20_000)
    assert is_compile_error(result)
    assert result.stderr_truncated and len(result.stderr) < 21_000
    assert "missing_0" in result.stderr and "missing_1999" in result.stderr


async def test_a_compiler_that_wants_all_memory_is_an_error(run: Run) -> None:
    levels = [f"#define A{n} {','.join([f'A{n - 1}'] * 10)}" for n in range(1, 9)]
    source = "\n".join(
        ["#define F(...) __VA_ARGS__", "#define A0 1", *levels, "int a[] = {F(F(A8))};", "int main() {}"]
    )
    result = await run(source)
    assert is_compile_error(result), result
    assert "memory" in result.stderr


async def test_a_compilation_that_takes_too_long_is_an_error_and_leaves_nothing(quick: SandboxPool) -> None:
    result = await runner(quick)(SLOW_TO_COMPILE)
    assert is_compile_error(result), result
    assert "compilation stopped: it took more than 600 ms" in result.stderr
    await until(lambda: not compilers(quick))
    assert (await runner(quick)("int main() { return 0; }")).status is Status.OK


async def test_a_cancelled_compilation_leaves_nothing(pool: SandboxPool) -> None:
    call = asyncio.create_task(pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp")))
    await until(lambda: len(compilers(pool)) >= 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not compilers(pool))


async def test_a_deadline_ends_a_compilation(pool: SandboxPool) -> None:
    deadline = asyncio.get_running_loop().time() + 0.3
    with pytest.raises(SandboxError) as raised:
        await pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp"), deadline=deadline)
    assert raised.value.kind == "deadline"
    await until(lambda: not compilers(pool))


async def test_a_supervisors_death_ends_a_compilation() -> None:
    async with SandboxPool(("cpp",), max_live=2) as pool:
        call = asyncio.create_task(pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp")))
        await until(lambda: len(compilers(pool)) >= 2)
        orphans = compilers(pool)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in orphans))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def test_a_zygotes_death_loses_no_call(pool: SandboxPool) -> None:
    code = '#include <cstdio>\nint main() { puts("done"); }'
    calls = [asyncio.create_task(pool.run(ExecRequest(code=code, flavour="cpp"))) for _ in range(4)]
    await until(lambda: compilers(pool))
    os.kill(pool.zygotes["cpp"][-1], signal.SIGKILL)
    assert [result.stdout for result in await asyncio.gather(*calls)] == ["done\n"] * 4


# --- the flavour ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["seccomp", "landlock", "notify", "scratch"])
async def test_it_is_refused_where_a_layer_is_missing(layer: str) -> None:
    with pytest.raises(SandboxError, match="needs") as raised:
        async with SandboxPool(("cpp",), without=(layer,), allow_no_isolation=True):
            pass
    assert raised.value.kind == "no_isolation"
    assert not raised.value.retryable


async def test_it_is_refused_without_a_compiler() -> None:
    with pytest.raises(SandboxError, match=r"no '/no/such/g\+\+': apt-get install g\+\+") as raised:
        async with SandboxPool(("cpp",), cpp_command="/no/such/g++ -o {exe} {source}"):
            pass
    assert (raised.value.kind, raised.value.retryable) == ("missing_import", False)


async def test_it_has_no_sessions(pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match="no sessions"):
        await pool.open_session(flavour="cpp")


async def test_the_command_can_be_chosen() -> None:
    command = "g++ -O0 -std=c++20 -DANSWER=42 -o {exe} {source}"
    async with SandboxPool(("cpp",), cpp_command=command) as pool:
        result = await runner(pool)("int main() { static_assert(__cplusplus >= 202002); return ANSWER; }")
    assert result.exit_code == 42


async def test_a_command_that_makes_nothing_is_an_error() -> None:
    async with SandboxPool(("cpp",), cpp_command="g++ -fsyntax-only -o {exe} {source}") as pool:
        result = await runner(pool)("int main() {}")
    assert is_compile_error(result)
    assert result.stderr == "the compiler made no program\n"


@pytest.mark.parametrize(
    "command", ["", "g++", "g++ -o {exe}", "g++ {source} {nothing} {exe}", "g++ '{source} {exe}"]
)
async def test_a_command_without_sense_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match="cpp_command"):
        CppOptions(command=command)


async def test_the_compiler_is_found_in_the_path() -> None:
    assert CppOptions().zygote_words() == [
        *(shutil.which("g++"), "-O2", "-std=c++17", "-o", "program", "main.cpp"),
    ]


async def test_the_environment_may_name_the_command_as_for_code_judge() -> None:
    assert cpp.command_from({}) == cpp.DEFAULT_COMMAND
    assert (
        cpp.command_from({"CPP_COMPILE_COMMAND": "clang++ -o {exe} {source}"}) == "clang++ -o {exe} {source}"
    )
    path = cpp.command_from({"CPP_COMPILER_PATH": "/opt/a b/g++"})
    assert CppOptions(command=path).words()[:2] == ["/opt/a b/g++", "-O2"]
