"""The compiler of C++ programs: what a source may make it do, what is left of it, and how it is chosen."""

import asyncio
import os
import shutil
import signal

import pytest

from rocstar.sandbox.child import cpp
from rocstar.sandbox.child.cpp import CppOptions
from rocstar.sandbox.pool.pool import SandboxPool
from rocstar.sandbox.types import ExecRequest, SandboxError, Status

from ...patience import PATIENCE_S
from ..errors import sandbox_error
from ..watching import is_alive, started_by, until
from .compiling import MARKS, SLOW_TO_COMPILE, Run, is_compile_error, runner

pytestmark = MARKS

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
    await until(lambda: not started_by(quick))
    async with asyncio.timeout(PATIENCE_S):  # on a busy machine a short one takes as long, too
        while is_compile_error(result := await runner(quick)("int main() { return 0; }")):
            assert "took more than" in result.stderr
    assert result.status is Status.OK


async def test_a_cancelled_compilation_leaves_nothing(pool: SandboxPool) -> None:
    call = asyncio.create_task(pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp")))
    await until(lambda: len(started_by(pool)) >= 2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not started_by(pool))


async def test_a_deadline_ends_a_compilation(pool: SandboxPool) -> None:
    deadline = asyncio.get_running_loop().time() + 0.3
    with sandbox_error("deadline"):
        await pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp"), deadline=deadline)
    await until(lambda: not started_by(pool))


async def test_a_supervisors_death_ends_a_compilation() -> None:
    async with SandboxPool(("cpp",), max_live=2, compile_s=PATIENCE_S) as pool:
        call = asyncio.create_task(pool.run(ExecRequest(code=SLOW_TO_COMPILE, flavour="cpp")))
        await until(lambda: len(started_by(pool)) >= 2)
        orphans = started_by(pool)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in orphans))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_zygotes_death_loses_no_call(pool: SandboxPool) -> None:
    code = '#include <cstdio>\nint main() { puts("done"); }'
    calls = [asyncio.create_task(pool.run(ExecRequest(code=code, flavour="cpp"))) for _ in range(4)]
    await until(lambda: started_by(pool))
    os.kill(pool.zygotes["cpp"][-1], signal.SIGKILL)
    assert [result.stdout for result in await asyncio.gather(*calls)] == ["done\n"] * 4


# --- the flavour ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["seccomp", "landlock", "notify", "scratch"])
async def test_it_is_refused_where_a_layer_is_missing(layer: str) -> None:
    with sandbox_error("no_isolation", "needs") as raised:
        async with SandboxPool(("cpp",), without=(layer,), allow_no_isolation=True):
            pass
    assert not raised.value.retryable


async def test_it_is_refused_without_a_compiler() -> None:
    with sandbox_error("missing_import", r"the compiler '/no/such/g\+\+': apt-get install g\+\+", retryable=False):
        async with SandboxPool(("cpp",), cpp_command="/no/such/g++ -o {exe} {source}"):
            pass


async def test_it_has_no_sessions(pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match="no sessions"):
        await pool.open_session(flavour="cpp")


async def test_the_command_can_be_chosen() -> None:
    command = "g++ -O0 -std=c++20 -DANSWER=42 -o {exe} {source}"
    async with SandboxPool(("cpp",), cpp_command=command, compile_s=PATIENCE_S) as pool:
        result = await runner(pool)("int main() { static_assert(__cplusplus >= 202002); return ANSWER; }")
    assert result.exit_code == 42


async def test_a_command_that_makes_nothing_is_an_error() -> None:
    async with SandboxPool(("cpp",), cpp_command="g++ -fsyntax-only -o {exe} {source}", compile_s=PATIENCE_S) as pool:
        result = await runner(pool)("int main() {}")
    assert is_compile_error(result)
    assert result.stderr == "the compiler made no program\n"


@pytest.mark.parametrize("command", ["", "g++", "g++ -o {exe}", "g++ {source} {nothing} {exe}", "g++ '{source} {exe}"])
async def test_a_command_without_sense_is_refused(command: str) -> None:
    with pytest.raises(ValueError, match="cpp_command"):
        CppOptions(command=command)


async def test_the_compiler_is_found_in_the_path() -> None:
    assert CppOptions().zygote_words() == [*(shutil.which("g++"), "-O2", "-std=c++17", "-o", "program", "main.cpp")]


async def test_the_environment_may_name_the_command_as_for_code_judge() -> None:
    assert cpp.command_from({}) == cpp.DEFAULT_COMMAND
    assert cpp.command_from({"CPP_COMPILE_COMMAND": "clang++ -o {exe} {source}"}) == "clang++ -o {exe} {source}"
    path = cpp.command_from({"CPP_COMPILER_PATH": "/opt/a b/g++"})
    assert CppOptions(command=path).words()[:2] == ["/opt/a b/g++", "-O2"]
