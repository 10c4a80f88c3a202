"""Checks that the committed script and style of the pages are those that web/ builds.

Node is not needed to use or to test Ridgeline. Where it is missing, or its packages cannot be
installed, this says so and passes.
"""

import filecmp
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "ridgeline" / "report" / "renderers" / "assets"
INSTALL_LIMIT_S = 180.0


def main() -> int:
    if shutil.which("npm") is None:
        print("web: NOT CHECKED: there is no npm, so the page's script was not built again")
        return 0
    if not (WEB / "node_modules").is_dir():
        words = ["npm", "ci", "--ignore-scripts", "--silent"]
        try:
            subprocess.run(words, cwd=WEB, check=True, timeout=INSTALL_LIMIT_S)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"web: NOT CHECKED: the packages could not be installed: {error}")
            return 0
    if subprocess.run(["npm", "run", "--silent", "check"], cwd=WEB).returncode:
        print("web: the types of the page's script do not fit")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["node", "build.mjs", folder], cwd=WEB, check=True)
        names = sorted(path.name for path in Path(folder).iterdir())
        _, differing, missing = filecmp.cmpfiles(folder, BUILT, names, shallow=False)
    if differing or missing:
        print(f"web: {', '.join(differing + missing)} differ from web/src: cd web; npm run build")
        return 1
    print("web: the committed script and style are those that web/ builds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
