"""A build hook that compiles the Chinese catalogues."""

import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileMessages(BuildHookInterface[Any]):
    """Writes ``locale/zh/LC_MESSAGES/headwise.mo``, which is not committed, into the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the catalogues and add the file to the artifacts of the wheel."""
        del version
        sys.path.insert(0, self.root)
        from tools.messages import compile_catalogue

        compile_catalogue()
        build_data["artifacts"].append("*.mo")
