"""Compile the Chinese catalogues before anything is packed or installed in place."""

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileMessages(BuildHookInterface[Any]):
    """Write ``locale/zh/LC_MESSAGES/headwise.mo``, which git does not keep, into the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the file as an artifact so that the wheel takes it."""
        del version
        sys.path.insert(0, self.root)
        from tools.messages import compile_catalogue

        compile_catalogue()
        build_data["artifacts"].append("*.mo")
