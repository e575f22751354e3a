"""Builds one wheel that holds the plugin for several versions of TensorFlow.

    python tensorflow/build_wheels.py --versions 2.15.1,2.21.0 --output dist

With `--engine` and `--programs` it takes what was compiled before, as `scripts/release` does, and the wheel also brings
the programs `grpcxx` and `grpcxx-server`. Fetches each TensorFlow from the package index (about 600 MB each), keeps its headers and libraries only while they
are needed, and installs nothing. The wheel serves every Python from 3.9 on.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import native

# The latest of each series that the plugin supports.
VERSIONS = ("2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
# A Python for which there are wheels of all these versions.
PYTHON = "3.11"


def main():
    options = parse_options()
    output = native.output_folder()
    plugins = output / "plugins"
    shutil.rmtree(plugins, ignore_errors=True)
    plugins.mkdir(parents=True)
    try:
        if options.engine:
            library = Path(shutil.copy(options.engine, plugins / native.LIBRARY_NAME))
        else:
            library = native.build_engine(output, print)
        for program in native.PROGRAMS if options.programs else ():
            shutil.copy(Path(options.programs) / program, plugins)
        for version in options.versions.split(","):
            # Next to the results, since /tmp may be small.
            with tempfile.TemporaryDirectory(dir=output) as folder:
                tensorflow = fetch(version, Path(folder))
                # The loader comes out the same for each version.
                for built in native.build_plugin(tensorflow, library, Path(folder) / "plugin", print):
                    shutil.copy(built, plugins)
    except native.BuildError as error:
        sys.exit(f"build_wheels: {error}")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", options.output]
    subprocess.run(
        [*command, str(Path(__file__).parent)], env={**os.environ, "GRPCXX_PLUGINS": str(plugins)}, check=True
    )


def fetch(version, folder):
    """Fetches a TensorFlow and unpacks what the plugin is compiled against."""
    print(f"grpcxx: fetching TensorFlow {version}", flush=True)
    machine = native.platform.machine()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", PYTHON]
    for platform in ("manylinux2014", "manylinux_2_17", "manylinux_2_27", "manylinux_2_28"):
        command += ["--platform", f"{platform}_{machine}"]
    if subprocess.run([*command, f"tensorflow=={version}"], check=False).returncode != 0:
        raise native.BuildError(f"TensorFlow {version} cannot be fetched; the reason is above")
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(NEEDED) or name.endswith(".dist-info/METADATA"):
                archive.extract(name, site)
    wheel.unlink()
    return native.TensorFlow(version, site / "tensorflow", sys.executable, str(site))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", default=",".join(VERSIONS), help="versions of TensorFlow, separated by commas")
    parser.add_argument("--output", default="dist", help="folder for the wheel")
    parser.add_argument("--engine", help="the shared library, if it is compiled already")
    parser.add_argument("--programs", help="folder with programs that the wheel shall bring")
    return parser.parse_args()


NEEDED = (
    "tensorflow/__init__.py",
    "tensorflow/include/",
    "tensorflow/libtensorflow_cc.so",
    "tensorflow/libtensorflow_framework.so",
)

if __name__ == "__main__":
    main()
