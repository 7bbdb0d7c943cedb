#!/usr/bin/env python3
"""Run the commands of README's shell blocks in a fresh clone, and every command that they print.

    python3 .ci/follow_readme.py [--as USER] [--folder DIR] [--transcript FILE] [--list] [--skip TEXT]...

One shell on a terminal runs all of them in README's order, so that an activated environment and the folder
stay. A line `label: command` of the output that names rocstar or torchrun is a printed command: it is pasted
into the same shell after the command that printed it, once. A command whose comment or output has "Ctrl-C"
gets one as soon as it is ready, and a chat Ctrl-D. `sudo` lines are left out: the packages are expected.
`--as` needs root and runs everything as that user. Ends with 0 if each command ended with 0; a `--dry-run`
may end with 2.
"""

from __future__ import annotations

import argparse
import os
import pty
import pwd
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "follow-readme>"
READY = re.compile(r"Ctrl-C|http://\S+:\d+")
PRINTED = re.compile(r"^\s*[\w ,'-]+: +((?:\S*/)?(?:rocstar|torchrun|python)(?: .*)?)$", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
LONGEST_S = 1800.0


def readme_commands() -> list[str]:
    """Return the lines of README's bash blocks with their comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.partition("#")[0].strip()]


class Shell:
    """An interactive bash on a terminal of its own; `run` returns when its prompt is back."""

    def __init__(self, folder: Path, user: str | None) -> None:
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            account = pwd.getpwnam(user) if user else pwd.getpwuid(os.getuid())
            if user:
                os.initgroups(user, account.pw_gid)
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
            os.chdir(folder)
            home = str(folder.parent) if user else account.pw_dir
            passed = re.compile("PIP_|https?_proxy|LANG")
            kept = {name: value for name, value in os.environ.items() if passed.match(name)}
            path = "/usr/local/bin:/usr/bin:/bin" if user else os.environ["PATH"]
            words = {"HOME": home, "PATH": path, "TERM": "dumb", "PS1": f"{PROMPT}$?>", "COLUMNS": "400"}
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting"], kept | words)
        self.read(None)

    def run(self, command: str, *, stops: bool) -> tuple[int, str]:
        os.write(self.terminal, command.encode() + b"\n")
        if re.search(r"rocstar chat (?!.*--prompt)", command):
            return self.read(re.compile("."), key=b"\x04")
        return self.read(READY if stops else re.compile("Ctrl-C"))

    def read(self, ready: re.Pattern[str] | None, key: bytes = b"\x03") -> tuple[int, str]:
        """Return exit code and output up to the prompt. Once `ready` is in it, send `key` in each silence."""
        text, silences, deadline = "", 0, time.monotonic() + LONGEST_S
        while not (end := re.search(rf"{PROMPT}(\d+)>$", text)):
            if time.monotonic() > deadline:
                raise SystemExit(f"no end after {LONGEST_S:.0f} s; the output ends with: {text[-2000:]}")
            if select.select([self.terminal], [], [], 1.0)[0]:
                text = COLOURS.sub("", text + os.read(self.terminal, 65536).decode(errors="replace"))
            elif ready and ready.search(text.partition("\n")[2]):
                if silences % 10 == 0:  # a second of silence after it is ready, and each ten seconds later
                    os.write(self.terminal, key)
                silences += 1
        return int(end[1]), text[: end.start()]

    def close(self) -> None:
        os.close(self.terminal)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--as", dest="user", help="an ordinary user; needs root")
    parser.add_argument("--folder", type=Path, help="an empty folder for the clone; default: a temporary one")
    parser.add_argument("--transcript", type=Path, default=Path("follow-readme.txt"))
    parser.add_argument("--skip", action="append", default=["sudo "], help="beginning of commands to leave out")
    parser.add_argument("--list", action="store_true", help="print README's commands, run none")
    options = parser.parse_args()
    commands = [line for line in readme_commands() if not line.startswith(tuple(options.skip))]
    if options.list:
        print("\n".join(commands))
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix="follow-readme-"))
    clone = folder / "rocstar"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    if options.user:
        folder.chmod(0o755)
        subprocess.run(["chown", "-R", f"{options.user}:", str(folder)], check=True)
    shell, failed, seen = Shell(clone, options.user), 0, set[str]()
    with options.transcript.open("w", encoding="utf-8") as transcript:
        queue = [(line, "README") for line in commands]
        while queue:
            line, source = queue.pop(0)
            command = line.partition("  #")[0].strip()
            began = time.monotonic()
            code, text = shell.run(command, stops="Ctrl-C" in line)
            allowed = {0, 2} if "--dry-run" in command else {0, 130} if "Ctrl-C" in line + text else {0}
            failed += code not in allowed
            verdict = "as expected" if code in allowed else "WRONG"
            head = f"[{source}] {command}\n  exit code {code}, {verdict}, {time.monotonic() - began:.0f} s"
            print(head, flush=True)
            transcript.write(f"{head}\n{text.partition(chr(10))[2]}\n\n")
            transcript.flush()
            # The start of a plan that lacks something cannot run.
            printed = PRINTED.findall(text.partition("\n")[2]) if code != 2 else []
            new = [found for found in printed if found not in seen]
            seen.update(new)
            queue[:0] = [(one, "printed") for one in dict.fromkeys(new)]
    shell.close()
    print(f"{len(commands)} commands of README, {len(seen)} printed; {failed} ended with another exit code")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
