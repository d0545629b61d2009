"""``paceline serve``: a model behind OpenAI's protocol."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import FLAGS, LONG, check_counts, load_model
from paceline.cli.output import note, say, status, wipe
from paceline.errors import InputError, need
from paceline.files.reading import read_pipe

if TYPE_CHECKING:
    from paceline.api.drafters import Lease
    from paceline.api.model import LanguageModel
    from paceline.integrations.server.doors import Doors
    from paceline.integrations.server.models import Limits, Models, ServedModel

HOST, PORT = "127.0.0.1", 8000
KEY_BYTES = 1 << 20
MEGABYTE = 1 << 20
LAST_PORT = (1 << 16) - 1
WARM_TEXT, WARM = "Once upon a time there was a king, and the king had a horse.", 8
"""What is written before the first request: the beginning, and how many tokens."""


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "serve",
        run=run,
        help="serve a model to OpenAI's clients, and a page that shows how it drafts",
        description=(
            "Serve models by OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/responses, /v1/models; "
            "besides /tokenize, /detokenize, /apply-template, /health, /metrics (Prometheus), /props, and a page at /. "
            "Requests are written together, each as it would be written alone: same seed, same text, whatever drafts "
            "and whatever the load. It listens on this machine only, unless --host names another address; then "
            "--api-key or --api-key-file is needed. Needs: pip install 'paceline[serve]'."
        ),
    )
    parser.several("--model -m", "MODEL", "what to serve; the first is the default", dest="models", required=True)
    parser.several("--name", "NAME", "what clients call the models (default: the last part of each path)", default=[])
    parser.add_place()
    parser.add_quantize()
    parser.flag("--no-probe", "time no forwards of 1 to 32 rows before the first text, for the planner")
    parser.add_trust()
    parser.argument("--method", "SPEC", "how to draft where a request does not say (default: auto)")
    parser.argument("--planner", "P", "how large drafts are where a request does not say (default: adaptive)")
    text = "small models that draft; a request may name one, and the first is the default"
    parser.several("--draft-model -md", "MODEL", text, dest="draft_models", default=[])
    parser.add_sampling([row for row in FLAGS if row.name != "seed"])
    _add_doors(parser)
    _add_limits(parser)


def _add_doors(parser: Parser) -> None:
    parser.argument("--host", "ADDRESS", f"where to listen (default: {HOST})", default=HOST)
    parser.argument("--port", "PORT", f"0 for any free port (default: {PORT})", int, default=PORT)
    parser.argument("--api-key", "KEY", "a key that every request must send; may be repeated", action="append")
    parser.argument("--api-key-file", "FILE", "a file with a key in each line", Path)
    text = "serve another address than this machine without a key; repeat it to confirm"
    parser.add_argument("--no-key", action="count", default=0, help=text)
    parser.several("--allowed-host", "NAME", "a name by which clients reach this server", default=[])
    parser.several("--cors", "ORIGIN", "sites whose pages may ask, such as https://a.example; * for all", default=[])


def _add_limits(parser: Parser) -> None:
    parser.argument("--max-batch", "N", "texts that are written together (default: 16)", int, default=16)
    parser.argument("--max-waiting", "N", "texts that may wait; others are refused (default: 256)", int, default=256)
    parser.argument("--max-tokens", "N", "new tokens of a text (default: the model's context)", int)
    text = "rows of keys and values of all texts together (default: what half of the free memory holds)"
    parser.argument("--max-rows", "N", text, int)
    text = "ended texts whose rows are kept for the next turn (default: 8)"
    parser.argument("--max-kept", "N", text, int, default=8)
    text = "connections at the same time; others are answered 503 (default: 1024)"
    parser.argument("--max-connections", "N", text, int, default=1024)
    parser.argument("--max-body", "MB", "megabytes of a request (default: 16)", int, default=16)
    parser.argument("--timeout", "SECONDS", "until an answer must be complete (default: none)", float)
    parser.argument("--read-timeout", "SECONDS", "until a request must have arrived (default: 30)", float, default=30.0)


def run(options: argparse.Namespace) -> int:
    for package in ("starlette", "uvicorn", "pydantic", "prometheus_client"):
        need(package, "serving", "serve")
    from paceline.integrations.server.app import make_app
    from paceline.integrations.server.run import bind, server_for, url_of

    check_counts(options, "max_batch", "max_waiting", "max_tokens", "max_rows", "max_body", "max_connections")
    if not 0 <= options.port <= LAST_PORT:
        raise InputError(f"--port is 0 to {LAST_PORT}, not {options.port}")
    doors, limits = doors_of(options), limits_of(options)
    bound = bind(options.host, options.port)
    try:
        models = models_of(options)
        _log()
        app = make_app(models, limits=limits, doors=doors)
        server = server_for(
            app,
            head_seconds=limits.read_seconds,
            connections=options.max_connections,
            ready=lambda: say(greeting(url_of(bound), models, doors)),
        )
        server.run(sockets=[bound])
    except KeyboardInterrupt:
        note("stopped")
    finally:
        bound.close()
    return 0


def _log() -> None:
    """A line on standard error for every answer, and for every error. Those of requests are ours, and uvicorn would add
    a traceback for each answer that the end of the server cuts off."""
    logging.disable(logging.NOTSET)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("paceline.server", logging.INFO), ("uvicorn", logging.CRITICAL)):
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).addHandler(handler)


def models_of(options: argparse.Namespace) -> Models:
    """The models, loaded."""
    from paceline.integrations.server.models import Models

    names = options.name or [Path(model).name or model for model in options.models]
    if len(names) != len(options.models):
        raise InputError(f"--name has {len(names)} names for {len(options.models)} models; give one for each")
    if len(set(names)) < len(names):
        raise InputError(f"two models are called {max(names, key=names.count)!r}; give each a --name")
    loaded = [_loaded(options, model) for model in options.models]
    devices = [str(one.lm.target.device) for one in loaded]
    # Free memory is divided after all are loaded, and measured before any text is written.
    served = [
        _served(options, one, name, devices.count(device))
        for one, name, device in zip(loaded, names, devices, strict=True)
    ]
    for one in served:
        _warm_up(one)
    return Models(served)


class _Loaded(NamedTuple):
    """A model before rows are given to it."""

    lm: LanguageModel
    lease: Lease
    defaults: dict[str, Any]
    drafts: dict[str, str]


def _loaded(options: argparse.Namespace, model: str) -> _Loaded:
    from paceline.api.settings import split_settings

    drafts = {Path(one).name or one: one for one in options.draft_models}
    named = {"method": options.method, "planner": options.planner, "draft_model": next(iter(drafts.values()), None)}
    named |= {row.name: getattr(options, row.name, None) for row in FLAGS}
    defaults: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    how, _ = split_settings(defaults)
    how.planner_for(how.drafter)
    own = argparse.Namespace(**{**vars(options), "model": model})
    lm = load_model(own, generation_config=True)
    if lm.vocabulary is None:
        raise InputError(f"{model} has no tokenizer, and clients send texts; put tokenizer.json into its folder")
    lease = lm.lease(how)  # a draft model that does not fit is found now
    return _Loaded(lm, lease, defaults, drafts)


def _served(options: argparse.Namespace, loaded: _Loaded, name: str, models: int) -> ServedModel:
    """A model with its share of the memory, which so many models on its device divide."""
    from paceline.api.serving import rows_that_fit
    from paceline.integrations.server.models import ServedModel

    lm, lease, defaults, drafts = loaded
    most = options.max_rows or rows_that_fit(lm.target, options.max_batch, models)
    serving = lm.serving(at_once=options.max_batch, kept=options.max_kept, max_rows=most)
    return ServedModel(name=name, lm=lm, serving=serving, defaults=defaults, drafts=drafts, lease=lease)


def _warm_up(served: ServedModel) -> None:
    """Write a few tokens as a request would, so that the first answer does not wait for what is compiled and timed."""
    from paceline.integrations.server.settings import usual_temperature

    status(f"warming up {served.name}")
    lm, most = served.lm, served.serving.max_rows
    prompt = lm.encode(WARM_TEXT)[: None if most is None else most - 1].tolist()
    settings: Any = {**served.defaults, "temperature": usual_temperature(served), "seed": 0, "ignore_eos": True}

    async def written() -> None:
        async with aclosing(served.serving.read(lambda: lm.write(prompt, **settings, max_new_tokens=WARM))) as pieces:
            async for _ in pieces:
                pass

    asyncio.run(written())
    served.serving.kept.clear()
    wipe()


def limits_of(options: argparse.Namespace) -> Limits:
    from paceline.integrations.server.models import Limits

    for name in ("timeout", "read_timeout"):
        if (seconds := getattr(options, name)) is not None and not seconds > 0:
            raise InputError(f"--{name.replace('_', '-')} must be above 0, not {seconds:g}")
    return Limits(
        at_once=options.max_batch,
        waiting=options.max_waiting,
        tokens=options.max_tokens,
        body_bytes=options.max_body * MEGABYTE,
        seconds=options.timeout,
        read_seconds=options.read_timeout,
    )


def doors_of(options: argparse.Namespace) -> Doors:
    """Who may ask."""
    from paceline.integrations.server.doors import LOOPBACK, Doors, digest_of

    keys = list(options.api_key or []) + (_keys_in(options.api_key_file) if options.api_key_file else [])
    if any(not key.strip() for key in keys):
        raise InputError("an --api-key is empty; give at least one character")
    if options.no_key and keys:
        raise InputError("--no-key and a key exclude each other; leave one out")
    if options.host.lower() not in LOOPBACK and not keys and options.no_key < 2:
        raise InputError(
            f"{options.host[:LONG]} can be reached from other machines, so requests need a key; give --api-key KEY or "
            "--api-key-file FILE, "
            "or confirm with --no-key --no-key"
        )
    return Doors(
        host=options.host,
        hosts=tuple(options.allowed_host),
        keys=tuple(digest_of(key.strip()) for key in keys),
        origins=tuple(options.cors),
    )


def _keys_in(file: Path) -> list[str]:
    try:
        text = read_pipe(file, KEY_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
        raise InputError(f"cannot read --api-key-file {file}: {why}") from None
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise InputError(f"--api-key-file {file} holds no key; write one into each line")
    return keys


def greeting(url: str, models: Models, doors: Doors) -> str:
    """The address, and how to ask: for a shell and in Python."""
    name, key = models.first.name, '"KEY"' if doors.keys else '"none"'
    header = " -H 'Authorization: Bearer KEY'" if doors.keys else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    return "\n".join(
        [
            f"serving {', '.join(served.name for served in models)} on {url} (a page for a browser is there, too)",
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{header} -d '{body}'",
            f'  openai.OpenAI(base_url="{url}/v1", api_key={key})',
        ]
    )
