"""What `pip install ./tensorflow` compiles, and where the wheel puts it.

pip builds in an environment of its own, in which the installed TensorFlow cannot be seen. `native.find_tensorflow`
therefore asks the same interpreter again, without what pip added to its path. Variables for other cases:

* `GRPCXX_TENSORFLOW`: the interpreter whose TensorFlow is meant, for tools that build in a virtual environment
  (`uv pip install`, `python -m build`); or `none` for a package without the plugin.
* `GRPCXX_PLUGINS`: a folder with finished plugins for any number of versions, and maybe the engine and the programs,
  as `build_wheels.py` makes it.
* `TEST_ENGINE`: not empty for the engine as the tests of Rust are built, which is slower and checks itself more.
"""

import os
import sys
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import native


class NativeBuildHook(BuildHookInterface):
    """Adds the compiled files to the wheel."""

    def initialize(self, version, build_data):
        if version == "editable":
            self.app.abort("grpcxx holds compiled files and cannot be installed with -e; install it without")
        plugins = os.environ.get("GRPCXX_PLUGINS")
        finished = Path(plugins) if plugins else None
        try:
            files = native.installed_files(native.output_folder(), finished, self.app.display_info)
        except native.BuildError as error:
            self.app.abort(f"grpcxx cannot be built: {error}")
        build_data["force_include"].update({str(source): target for source, target in files.items()})
        programs = native.installed_programs(finished)
        build_data["shared_scripts"].update({str(source): name for source, name in programs.items()})
        build_data["pure_python"] = False
        build_data["tag"] = native.wheel_tag(finished)
