"""What a program that is ended at once leaves in the temporary directory."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, os, tempfile
from ridgeline.harness.capture.program_exit import remove_temporary_files

folder = tempfile.TemporaryDirectory()
open(os.path.join(folder.name, "data.bin"), "w").close()
file = tempfile.NamedTemporaryFile()
kept = tempfile.NamedTemporaryFile(delete=False)
asked_for = tempfile.mkdtemp()

def child():
    remove_temporary_files()
    os._exit(0 if os.path.exists(folder.name) and os.path.exists(file.name) else 1)

if __name__ == "__main__":
    one = multiprocessing.get_context("fork").Process(target=child)
    one.start()
    one.join()
    with tempfile.TemporaryDirectory() as inside:
        remove_temporary_files()
        os._exit(one.exitcode)
"""


def test_only_files_that_python_would_remove_at_exit_are_removed(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)], env={"TMPDIR": str(temporary)}, check=False
    )
    assert ended.returncode == 0, "a fork left its parent's folders alone"
    left = sorted(temporary.iterdir())
    assert sorted(one.is_dir() for one in left) == [False, True], "kept, and asked for by mkdtemp"
