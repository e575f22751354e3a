#!/usr/bin/env python3
"""Builds the TensorFlow plugin against the TensorFlow that a Python has.

    python tensorflow/plugin/build.py --python /path/to/python --out DIR

puts two files into DIR:

    libgrpcxx_tensorflow_<version>.so   the plugin, for exactly this version of TensorFlow
    grpcxx_loader.so                    what TensorFlow opens on import; knows no TensorFlow headers

and needs the engine as a shared library (`--engine`, by default target/release/libgrpcxx_capi.so of the
checkout), with which the plugin is linked and which must lie beside it or in its parent folder at run time.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent

LOADER = "loader.cc"
LOADER_NAME = "grpcxx_loader.so"


# A half for each of two CPUs; more of them read TensorFlow's headers more often.
UNITS = 2


def units(folder):
    """Files in `folder` that include a share of the plugin's sources each, without the loader.

    TensorFlow's headers take a compiler ten times longer than a source of ours, so they are read once for many.
    """
    sources = sorted(path for path in HERE.glob("*.cc") if path.name != LOADER)
    size = -(-len(sources) // UNITS)
    made = []
    for number in range(UNITS):
        share = sources[number * size : (number + 1) * size]
        text = "".join(f'#include "{source}"\n' for source in share)
        unit = folder / f"unit-{number}.cc"
        # One that is as it was is not compiled again.
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        made.append(unit)
    return made


def plugin_name(version):
    """The file name of the plugin for one version of TensorFlow."""
    return f"libgrpcxx_tensorflow_{version}.so"


def describe(python):
    """Version and folder of the TensorFlow of `python`, without importing it."""
    program = (
        "import importlib.metadata, importlib.util, json, pathlib\n"
        "spec = importlib.util.find_spec('tensorflow')\n"
        "names = ('tensorflow', 'tensorflow-cpu', 'tensorflow-intel')\n"
        "def version():\n"
        "    for name in names:\n"
        "        try: return importlib.metadata.version(name)\n"
        "        except importlib.metadata.PackageNotFoundError: pass\n"
        "folder = spec.submodule_search_locations[0] if spec else None\n"
        "print(json.dumps({'version': version(), 'folder': folder}))\n"
    )
    answer = subprocess.run([str(python), "-c", program], check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    if not found["folder"] or not found["version"]:
        raise SystemExit(f"{python} has no TensorFlow; install one of 2.15 to 2.21 there first")
    return found["version"], pathlib.Path(found["folder"])


def compile_flags(tensorflow, header):
    """What each unit of the plugin is compiled with."""
    include = tensorflow / "include"
    return [
        "-std=c++17",
        "-O2",
        "-fPIC",
        "-fvisibility=hidden",
        "-fvisibility-inlines-hidden",
        "-DNDEBUG",
        "-D_GLIBCXX_USE_CXX11_ABI=1",
        "-DEIGEN_MAX_ALIGN_BYTES=64",
        "-DNOMINMAX",
        f"-I{header}",
        f"-isystem{include}",
        f"-isystem{include / 'external/com_github_grpc_grpc/include'}",
        f"-isystem{include / 'external/farmhash_archive/src'}",
        "-Wall",
        "-Wno-sign-compare",
    ]


def link_flags(tensorflow, engine):
    """What the plugin is linked with, after its objects."""
    return [
        f"-L{tensorflow}",
        "-l:libtensorflow_framework.so.2",
        "-l:libtensorflow_cc.so.2",
        f"-L{engine.parent}",
        f"-l:{engine.name}",
        "-Wl,-rpath,$ORIGIN:$ORIGIN/..",
        "-Wl,--no-undefined",
        # TensorFlow's own dependencies are resolved when the plugin is opened inside TensorFlow.
        "-Wl,--allow-shlib-undefined",
        # A part of the C library from glibc 2.34 on.
        "-ldl",
        "-lpthread",
    ]


def run(command, verbose):
    if verbose:
        print(shlex.join(str(part) for part in command), file=sys.stderr)
    subprocess.run([str(part) for part in command], check=True)


def build_loader(out, compiler="g++", verbose=False):
    """Builds the loader into `out` and returns its path."""
    out.mkdir(parents=True, exist_ok=True)
    target = out / LOADER_NAME
    run(
        [compiler, "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared",
         "-o", target, HERE / LOADER, "-ldl"],
        verbose,
    )
    return target


def dependencies(list_file, unit):
    """What an object is made of, as the compiler has listed it: our own files, not those of TensorFlow."""
    if not list_file.exists():
        return None
    words = list_file.read_text().replace("\\\n", " ").split()[1:]
    return [unit, *(pathlib.Path(word) for word in words)]


def is_older(target, files):
    """Whether `target` has to be made again."""
    if files is None or not target.exists():
        return True
    made = target.stat().st_mtime
    return any(not file.exists() or file.stat().st_mtime > made for file in files)


def build_plugin(python, out, engine, header, compiler="g++", jobs=None, objects=None, verbose=False):
    """Builds the plugin for the TensorFlow of `python` into `out` and returns its path.

    Objects are kept in `objects`, and compiled again only when a source or a header of theirs is newer.
    """
    version, tensorflow = describe(python)
    out.mkdir(parents=True, exist_ok=True)
    objects = objects or out / f"objects-{version}"
    objects.mkdir(parents=True, exist_ok=True)
    flags = compile_flags(tensorflow, header) + [f'-DGRPCXX_TENSORFLOW_VERSION="{version}"']

    def compile_one(unit):
        target = unit.with_suffix(".o")
        if is_older(target, dependencies(target.with_suffix(".d"), unit)):
            run([compiler, *flags, "-MMD", "-c", unit, "-o", target], verbose)
        return target

    with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        compiled = list(pool.map(compile_one, units(objects)))
    target = out / plugin_name(version)
    run([compiler, "-shared", "-o", target, *compiled, *link_flags(tensorflow, engine)], verbose)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python whose TensorFlow is built against")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the results")
    parser.add_argument("--engine", type=pathlib.Path, default=CHECKOUT / "target/release/libgrpcxx_capi.so")
    parser.add_argument("--header", type=pathlib.Path, default=CHECKOUT / "capi/include")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "g++"))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if not arguments.engine.exists():
        raise SystemExit(f"{arguments.engine} is missing; build it with `cargo build --release -p grpcxx-capi`")
    out = arguments.out.resolve()
    print(build_loader(out, arguments.compiler, arguments.verbose))
    print(
        build_plugin(
            arguments.python, out, arguments.engine.resolve(), arguments.header.resolve(),
            arguments.compiler, arguments.jobs, verbose=arguments.verbose,
        )
    )


if __name__ == "__main__":
    main()
