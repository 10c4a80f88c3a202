"""What a run records about where it ran, and what it never does."""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ridgeline.harness.capture.environment import (
    HIDDEN,
    RECORDED_VARIABLES,
    environment,
    git,
    packages,
    variables,
    with_tilde,
)
from ridgeline.records.run_directory import is_process_alive

CANARY = "c4n4ry-in-the-mine"

SECRETS = """
WANDB_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN OPENAI_API_KEY ANTHROPIC_API_KEY AWS_ACCESS_KEY_ID
AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_KEY
AZURE_STORAGE_CONNECTION_STRING GOOGLE_API_KEY GOOGLE_APPLICATION_CREDENTIALS GITHUB_TOKEN GH_TOKEN
GITLAB_TOKEN CI_JOB_TOKEN NPM_TOKEN PYPI_TOKEN TWINE_PASSWORD DOCKER_PASSWORD DATABASE_URL
POSTGRES_PASSWORD PGPASSWORD MYSQL_PWD REDIS_URL MONGO_URI SENTRY_DSN SLACK_TOKEN SLACK_WEBHOOK_URL
DISCORD_TOKEN TELEGRAM_TOKEN COMET_API_KEY NEPTUNE_API_TOKEN MLFLOW_TRACKING_PASSWORD
MLFLOW_TRACKING_TOKEN CLEARML_API_SECRET_KEY KAGGLE_KEY REPLICATE_API_TOKEN COHERE_API_KEY
MISTRAL_API_KEY TOGETHER_API_KEY NGC_API_KEY NVIDIA_API_KEY RUNPOD_API_KEY LAMBDA_API_KEY
MODAL_TOKEN_SECRET VAULT_TOKEN CONSUL_HTTP_TOKEN KUBECONFIG SSH_AUTH_SOCK GPG_PASSPHRASE
HTTP_PROXY HTTPS_PROXY ALL_PROXY PIP_INDEX_URL UV_INDEX_URL NETRC JUPYTER_TOKEN SECRET_KEY PASSWORD
NCCL_TOKEN TORCH_SECRET CUDA_PASSWORD OMP_API_KEY
"""


def repository(folder: Path) -> None:
    def run(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    run("init", "-q", "-b", "trunk")
    run("config", "user.email", "a@b.c")
    run("config", "user.name", "a")
    run("remote", "add", "origin", f"https://me:{CANARY}@github.com/me/private.git")
    (folder / "train.py").write_text("1\n")
    run("add", ".")
    run("commit", "-q", "-m", f"secret message {CANARY}")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own, whatever is around it; nothing of this machine's settings."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_no_canary_of_any_variable_or_remote_is_recorded(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = SECRETS.split()
    assert len(set(names)) >= 60
    for name in names:
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    repository(project)
    recorded = environment(project)
    assert CANARY not in msgspec.json.encode(recorded).decode()
    assert recorded.variables["OMP_NUM_THREADS"] == "3"
    assert not set(names) & set(recorded.variables)


def test_no_recorded_variable_is_named_like_a_secret() -> None:
    from ridgeline.harness.capture.environment import is_secret

    assert [name for name in RECORDED_VARIABLES if is_secret(name)] == []
    assert len(RECORDED_VARIABLES) == len(set(RECORDED_VARIABLES))


@pytest.mark.parametrize(
    "value",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        "https://me:canary@host/",
        "x" * 5000,
        "a\x1b[31mb",
        "0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_a_listed_variable_with_a_strange_value_is_named_without_it(value: str) -> None:
    assert variables({"NCCL_DEBUG": value}) == {"NCCL_DEBUG": HIDDEN}


def test_ordinary_values_are_recorded_as_they_are() -> None:
    present = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
        "CUDA_VISIBLE_DEVICES": "GPU-5d41402a-bc4b-2a76-b971-9d911017c592,1",
        "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "EDITOR": "vi",
    }
    kept = variables(present)
    assert kept == {name: value for name, value in present.items() if name != "EDITOR"}


def test_git_gives_commit_branch_and_whether_the_tree_is_dirty(project: Path) -> None:
    repository(project)
    clean = git(project)
    assert clean is not None
    assert (len(clean.commit), clean.branch, clean.dirty, clean.looked) == (
        40,
        "trunk",
        False,
        True,
    )
    (project / "train.py").write_text("2\n")
    changed = git(project)
    assert changed is not None
    assert changed.dirty


def test_git_of_a_detached_head_has_no_branch_and_of_no_commit_no_commit(project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    empty = git(project)
    assert empty is not None
    assert empty.commit == ""
    repository(project)
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=project, check=True)
    detached = git(project)
    assert detached is not None
    assert (detached.branch, len(detached.commit)) == ("", 40)


def test_without_a_repository_or_without_git_nothing_is_recorded_of_git(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git(project) is None
    monkeypatch.setenv("PATH", str(project))
    assert git(project) is None


def test_a_git_that_hangs_is_ended_with_its_children(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = project / "git"
    # its child holds the pipe open, as a filter would
    fake.write_text(f"#!/bin/sh\nsleep 600 &\necho $! >> {project}/children\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}:{os.environ['PATH']}")
    assert git(project, seconds=0.5) is None
    for child in (project / "children").read_text().split():
        deadline = time.monotonic() + 30  # the signal was sent; dying takes its own time
        while is_process_alive(int(child), 0):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_tree_too_large_to_look_at_still_gives_the_commit(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = project / "git"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *status*) sleep 600;; *) echo 0123abc; echo trunk;; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}:{os.environ['PATH']}")
    found = git(project, seconds=0.5)
    assert found is not None
    assert (found.commit, found.branch, found.looked) == ("0123abc", "trunk", False)


def test_a_repository_cannot_make_us_run_its_programs_or_change_its_index(project: Path) -> None:
    repository(project)
    ran = project / "ran"
    hook = project / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    for setting in ("core.fsmonitor", "core.sshCommand", "credential.helper"):
        subprocess.run(["git", "config", setting, str(hook)], cwd=project, check=True)
    before = (project / ".git" / "index").stat()
    os.utime(project / "train.py")  # makes a plain `git status` refresh the index
    assert git(project) is not None
    after = (project / ".git" / "index").stat()
    assert not ran.exists()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_only_listed_packages_are_recorded_and_the_first_on_the_path_wins(tmp_path: Path) -> None:
    for name in (
        "one/torch-2.9.0+cu128.dist-info",
        "one/flash_attn-2.7.dist-info",
        "one/left_pad-1.dist-info",
        "two/torch-1.0.dist-info",
        "two/Pillow-10.1-py3.11.egg-info",
        "two/nvidia_nccl_cu12-2.2.dist-info",
    ):
        (tmp_path / name).mkdir(parents=True)
    path = [str(tmp_path / "none"), str(tmp_path / "one"), str(tmp_path / "two")]
    assert packages(path) == {
        "flash-attn": "2.7",
        "nvidia-nccl-cu12": "2.2",
        "pillow": "10.1",
        "torch": "2.9.0+cu128",
    }


def test_this_interpreters_torch_is_found() -> None:
    from importlib.metadata import version

    assert packages(sys.path)["torch"] == version("torch")


def test_the_home_directory_is_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert with_tilde("/home/ada/work") == "~/work"
    assert with_tilde("/home/adam/work") == "/home/adam/work"
    monkeypatch.setenv("HOME", "/")
    assert with_tilde("/data") == "/data"


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from ridgeline.harness.capture.environment import "
        "environment; environment(Path('.')); "
        "print({'torch', 'numpy', 'psutil', 'rich', 'importlib.metadata'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
