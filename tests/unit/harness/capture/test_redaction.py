"""What a command line, a line of code or an exception may give away, and what it must not."""

import itertools
import random
import string

import pytest

from ridgeline.harness.capture.environment import HIDDEN, MAX_KEPT_CHARS, redacted, redacted_text

CANARY = "canary"
"""As guessable as a bad password: only its name can give it away."""

_NAMES = """
password passwd pwd passphrase passcode pass secret token apikey api-key api_key apiKey API_KEY
auth-token auth_token authToken access-token access_token access-key secret-key secret_key
private-key private_key credentials creds bearer jwt cookie dsn otp webhook client-secret
client_secret db-password db-pass DB_PASSWORD PGPASSWORD MYSQL_PWD smtp-pass hf-token hf_token
HF_TOKEN HUGGING_FACE_HUB_TOKEN HUGGINGFACE_TOKEN wandb-key wandb_api_key WANDB_API_KEY
OPENAI_API_KEY ANTHROPIC_API_KEY COMET_API_KEY NEPTUNE_API_TOKEN MLFLOW_TRACKING_PASSWORD
CLEARML_API_SECRET_KEY AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_STORAGE_KEY
AZURE_STORAGE_CONNECTION_STRING AZURE_CLIENT_SECRET GOOGLE_API_KEY GITHUB_TOKEN GH_TOKEN
GITLAB_PRIVATE_TOKEN NPM_TOKEN PYPI_PASSWORD SLACK_WEBHOOK SLACK_BOT_API_TOKEN TELEGRAM_TOKEN
KAGGLE_KEY REPLICATE_API_TOKEN SENTRY_DSN NGC_API_KEY ssh-key license-key storage-account-key
encryption-key redis-password minio-secret-key x-api-key tracking.password logger.wandb.api_key
netrc sas-token token2
"""
NAMES = _NAMES.split()

KEYS = [
    "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "sk-" + "proj-4f9aKQ2bX7mZr8TnW1cV6yPdJ5uHs3Lg",
    "sk_live_" + "51H8x2bKQ9mZr8TnW1cV6yPd",
    "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789",
    "glpat-" + "xY3bK9mQ2wZr8TnW1cV6",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ASIA" + "IOSFODNN7EXAMPLE",
    "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "xoxb-" + "123456789012-abcdefABCDEF",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
    "nvapi-" + "Ab12Cd34Ef56Gh78",
    "r8_" + "Ab12Cd34Ef56Gh78Ij90",
    "npm_" + "abcdefghijklmnop1234",
    "pypi-" + "AgEIcHlwaS5vcmcCJDU1",
    "dckr_pat_" + "Ab12Cd34Ef56",
    "SG." + "abcdefgh1234.ijklmnop5678",
    "hvs." + "CAESIJ12abcdef",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "0123456789abcdef0123456789abcdef01234567",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
]

TEXTS = [
    f"https://user:{CANARY}@host.org/data",
    f"https://{CANARY}@github.com/me/private.git",
    f"postgresql://me:{CANARY}/x@db:5432/runs",
    f"redis://:{CANARY}@cache:6379/0",
    f"me:{CANARY}@db.example.org",
    f"https://host.org/file?token={CANARY}&part=1",
    f"https://host.org/file?part=1&api_key={CANARY}",
    f'{{"api_key": "{CANARY}", "layers": 3}}',
    f"{{'wandb': {{'password': '{CANARY}'}}}}",
    f'{{"api_keys": ["{CANARY}", "{CANARY}"]}}',
    f"Authorization: Bearer {CANARY}",
    f"Authorization: Basic {CANARY}==",
    f"X-Api-Key: {CANARY}",
    f"+logger.wandb.api_key={CANARY}",
    f"optim.lr=1 password={CANARY} epochs=3",
    f"AccountName=me;AccountKey={CANARY};EndpointSuffix=core",
]

ORDINARY = [
    ["--tokenizer", "gpt2"],
    ["--max-tokens", "128"],
    ["--max_new_tokens=2048"],
    ["--num-tokens", "3_000_000"],
    ["--keys", "a", "b"],
    ["--key-dim", "64"],
    ["--num-keys=8"],
    ["--sort-key", "loss"],
    ["--pad-token", "<pad>"],
    ["--eos_token_id", "50256"],
    ["--token-mixer", "conv"],
    ["--tokens-per-step", "524288"],
    ["--password-file", "/run/secrets/db"],
    ["--token-path=~/.cache/token"],
    ["--api-key-env", "MY_KEY"],
    ["--single-pass", "yes"],
    ["--lr", "1e-4"],
    ["--seed", "-1"],
    ["--data", "/data/imagenet/train/n01440764/n01440764_10026.JPEG"],
    ["--out", "runs/2024-11-15T10-30-00_resnet50_bs256_lr0.1"],
    ["--model", "meta-llama/Llama-3.1-8B-Instruct"],
    ["--model", "vit_large_patch14_clip_336.laion2b_ft_in12k_in1k"],
    ["--model", "ViT-bigG-14-CLIPA-336-datacomp1b"],
    ["--revision", "0123456789abcdef0123456789abcdef01234567"],
    ["models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e/config.json"],
    ["--url", "https://host.org:8080/data/part@2?page=3"],
    ["--remote", "git@github.com:me/project.git"],
    ["--image", "pytorch/pytorch:2.6@sha256:abc"],
    ["--gpus", "0,1,2,3"],
    ["--betas", "0.9", "0.999"],
    ["trainer.max_epochs=10", "data.batch_size=32", "+model.hidden=[64,64]"],
    ["--prompt", "a token of appreciation, in secret"],
    ["--auth", "basic"],
    ["--session", "baseline"],
    ["--pin-memory", "true"],
    ["--bypass", "x"],
    ["--compass=north"],
    ["-p", "8080"],
    ["--user", "alice"],
    ["--run-id", "5d41402a-bc4b-2a76-b971-9d911017c592"],
    ["--fp16", "resnet50"],
    [""],
    ["-"],
    ["--"],
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_value_with_a_secret_name_is_hidden_in_every_form(name: str) -> None:
    forms = [
        [f"--{name}", CANARY],
        [f"--{name}={CANARY}"],
        [f"{name}={CANARY} with more {CANARY}"],
        ["--env", f"{name}={CANARY}"],
        [f'{{"{name}": "{CANARY}"}}'],
        ["train.py", "--epochs", "1", f"--{name}", CANARY, "--lr", "0.1"],
    ]
    for form in forms:
        kept = redacted(form)
        assert CANARY not in " ".join(kept)
        assert HIDDEN in " ".join(kept)
        assert len(kept) == len(form)
    assert redacted(forms[5])[-2:] == ("--lr", "0.1")


def test_there_are_at_least_sixty_names() -> None:
    assert len(set(NAMES)) >= 60


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:8])
def test_a_key_of_a_known_format_is_hidden_wherever_it_stands(key: str) -> None:
    for form in ([key], ["--anything", key], [f"--x={key}"], [f"a {key} b"], [f'login("{key}")']):
        kept = " ".join(redacted(form))
        assert key not in kept
        assert key[-8:] not in kept


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_inside_a_longer_argument_is_hidden(text: str) -> None:
    for form in ([text], ["--x", text], [f"--x={text}"]):
        assert CANARY not in " ".join(redacted(form))


@pytest.mark.parametrize("arguments", ORDINARY, ids=" ".join)
def test_ordinary_arguments_stay(arguments: list[str]) -> None:
    assert redacted(arguments) == tuple(arguments)


def test_every_value_of_an_option_that_takes_several_is_hidden() -> None:
    kept = redacted(["--api-keys", "one", "two", "three", "--lr", "0.1"])
    assert kept == ("--api-keys", HIDDEN, HIDDEN, HIDDEN, "--lr", "0.1")


def test_a_login_keeps_the_user_and_loses_the_password() -> None:
    assert redacted(["-u", f"me:{CANARY}"]) == ("-u", f"me:{HIDDEN}")


def test_a_flag_without_a_value_does_not_hide_the_option_after_it() -> None:
    assert redacted(["--use-token", "--lr", "0.1"]) == ("--use-token", "--lr", "0.1")


def test_random_strings_are_nearly_always_hidden() -> None:
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits
    drawn = ["".join(draw.choices(letters, k=40)) for _ in range(500)]
    kept = redacted(list(itertools.chain.from_iterable(("--x", key) for key in drawn)))
    assert sum(key in kept for key in drawn) <= 5


def test_code_keeps_its_calls_and_loses_its_strings() -> None:
    code = (
        'import os; os.environ["HF_TOKEN"]="canary"; token = tokenizer(x); login(token="canary");'
        " password = getpass()"
    )
    kept = redacted_text(code)
    assert CANARY not in kept
    assert "token = tokenizer(x)" in kept
    assert "password = getpass()" in kept


@pytest.mark.parametrize("piece", ["a", "a:", "key=", "aA0", "://a:", "Bearer ", '"', "eyJ", "0f"])
def test_only_the_beginning_of_a_megabyte_is_searched_and_kept(piece: str) -> None:
    kept = redacted([piece * (1_000_000 // len(piece))])
    assert len(kept[0]) < MAX_KEPT_CHARS + 50


def test_a_key_across_the_cut_is_hidden_whole() -> None:
    text = "x " * (MAX_KEPT_CHARS // 2 - 5) + KEYS[0]
    assert "hf_" not in redacted([text])[0]
    assert "hf_" not in redacted([text + " x" * 5000])[0]
