"""Hints for flags and commands that do not exist: the right spelling, or the command that has the flag."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

CLOSE = 0.75
"""Similarity of two spellings from which one is taken for the other."""
NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")

WRITE = {
    "--num-draft-tokens": "--draft --draft-max --draft-n --spec-draft-n-max --speculative-num-draft-tokens "
    "--speculative-num-steps --n-draft --num-speculative-tokens",
    "--draft-model": "--model-draft --spec-draft-model --speculative-model --speculative-draft-model-path "
    "--assistant-model",
    "--draft-device": "--device-draft -devd --spec-draft-device --spec-device",
    "--method": "--methods --spec-type --speculative-algorithm --spec-method",
    "--rule": "--rules",
    "--planner": "--planners",
    "--peer": "--peers",
    "--model": "--models --model-path --model-name --model-name-or-path --model-id --pretrained --hf-repo --hf-file "
    "-hf -hfr -hff -hfd",
    "--length": "--lengths",
    "--batch": "--batches --batch-size",
    "--context": "--contexts",
    "--sequence": "--sequences",
    "--tensor-parallel": "--tensor-parallel-size -tp --tp-size --tp",
    "--max-new-tokens": "--max-tokens --n-predict --predict --max-length --num-predict --max-gen-len",
    "--temperature": "--temp -temp",
    "--top-p": "--nucleus",
    "--repetition-penalty": "--repeat-penalty --rep-pen",
    "--seed": "-s",
    "--stop": "--stop-sequence --stop-sequences --stop-string --stop-strings --stop-words --reverse-prompt -r",
    "--system": "--system-prompt -sys --system-message",
    "--samples": "--num-return-sequences --best-of --num-samples",
    "--prompt": "-p --text --input",
    "--prompt-file": "--file -f -bf --binary-file",
    "--threads": "-t --num-threads --cpu-threads",
    "--verbose": "--explain --debug --stats --timings --show-timings",
    "--quiet": "--silent --log-disable --no-progress --simple-io",
    "--html": "--out --output -o --page",
    "--device": "--cuda --gpu --cpu",
    "--dtype": "--torch-dtype --precision --fp16 --bf16",
    "--json": "--format --output-format",
    "--trust-remote-code": "--trust",
    "--name": "--served-model-name --alias -a",
    "--max-batch": "--parallel -np --max-num-seqs --at-once",
    "--max-waiting": "--queue-size --max-queue --backlog",
    "--timeout": "--request-timeout",
    "--cors": "--allowed-origins --cors-allow-origin",
    "--json-schema": "-j --guided-json --json-schema-file --response-format",
}
"""A flag of ours -> names that it has elsewhere, or had."""

SAY = {
    "the prompt has no flag: paceline generate 'Once'": "--prompt -p --text --input",
    "use the separate flags --method, --draft-model and --num-draft-tokens": "--speculative-config",
    "write --method lookup:max_ngram=N": "--prompt-lookup-num-tokens --prompt-lookup-max --prompt-lookup-min "
    "--spec-ngram-size-n --lookup-ngram-max",
    "the planner decides how large a draft is: --planner adaptive": "--draft-p-min --p-min --draft-min --draft-n-min "
    "--draft-p-split --spec-draft-p-min --spec-autotune --confidence-threshold --assistant-confidence-threshold",
    "a context is as long as its model's, and memory for it grows as it is filled": "-c --ctx-size --context-length "
    "--max-model-len --n-ctx --num-ctx --max-seq-len --keep --ctx-size-draft -cd",
    "set OMP_NUM_THREADS=N before the command": "-t --threads --threads-batch -tb --n-threads --num-threads -td",
    "text always appears as it is written; --json prints it whole": "--stream --no-stream --streaming",
    "the command line has --json-schema FILE; in Python write grammar=paceline.Grammar.lark(...)": (
        "--grammar --grammar-file -j --guided-json --guided-regex --guided-decoding-backend --regex "
        "--json-schema-file --response-format"
    ),
    "write --quantize int8 or int4": "--load-in-8bit --load-in-4bit --quantization --quant -q8 -q4 --bits",
    "in Python, load any quantised model with transformers and hand it to paceline.load": "--load-format",
    "keys and values are kept in the model's own type": "--cache-type-k --cache-type-v -ctk -ctv --kv-cache-dtype "
    "--kv-bits --kv-group-size --quantized-kv-start",
    "download that revision, and give its folder as --model": "--revision --code-revision --branch --commit",
    "download the file, and give the folder of a transformers model as --model": "--model-url -mu --download-dir "
    "--gguf-file --hf-token -hft --token",
    "the tokenizer is read from the model's folder: put it there": "--tokenizer --tokenizer-mode",
    "the model's own generation_config.json is followed; flags such as --temperature 0 go before it": (
        "--generation-config --override-generation-config --generation-config-path"
    ),
    "write --chat-template-kwargs '{\"enable_thinking\": false}'": "--enable-thinking --disable-thinking --no-thinking "
    "--think --reasoning-budget --reasoning --chat-template-args",
    "there is no beam search; --samples N draws several texts": "--num-beams --beam-width --use-beam-search "
    "--length-penalty --num-beam-groups --early-stopping",
    "a --temperature above 0 samples, and 0 does not": "--do-sample --no-sample --greedy --sampling",
    "the model runs on one device: --device cuda": "--n-gpu-layers -ngl --gpu-layers --main-gpu -mg --split-mode -sm "
    "--tensor-split -ts --n-gpu-layers-draft -ngld",
    "the command line takes one device; in Python paceline.load(..., device_map='auto') takes several": (
        "--tensor-parallel-size -tp --pipeline-parallel-size -pp --device-map --data-parallel-size --tp-size --num-gpus"
    ),
    "memory is taken as it is needed, and there is nothing to set": "--gpu-memory-utilization --mem-fraction-static "
    "--swap-space --cpu-offload-gb --mlock --mmap --no-mmap --numa --batch-size -b --ubatch-size -ub "
    "--low-vram --offload-folder --max-memory",
    "that is of a server: paceline serve": "--port --host --api-key --served-model-name --parallel -np --timeout "
    "--max-num-seqs",
    "put a proxy in front of the server": "--ssl-keyfile --ssl-certfile",
    "the chat template is the model's own, in its folder": "--chat-template --chat-template-file --jinja --no-jinja "
    "--prompt-format --in-prefix --in-suffix",
    "merge the adapter into its model (merge_and_unload of peft), and give the folder as --model": "--lora "
    "--lora-scaled --adapter --adapter-path --enable-lora --lora-modules --control-vector",
    "a chat keeps the rows of its earlier turns; nothing is kept between two commands": "--prompt-cache "
    "--prompt-cache-all --prompt-cache-ro --prompt-cache-file --session --save-session --slot-save-path",
    "to talk with a model: paceline chat": "-cnv --conversation -i --interactive --interactive-first -if --multiturn",
    "the prompt is continued as it stands, so leave it out": "-no-cnv --no-cnv --no-conversation --raw --echo "
    "--no-display-prompt --ignore-chat-template",
    "forwards are computed as the model was probed, and there is nothing to set": "--flash-attn -fa "
    "--attn-implementation --enforce-eager --compile --use-cache --no-kv-offload -nkvo --attention-backend "
    "--defrag-thold --warmup",
    "the command line lacks it; in Python any logits processor of transformers goes into processors=[...]": (
        "--typical-p --typical --mirostat --mirostat-lr --dry-multiplier --xtc-probability --top-n-sigma "
        "--dynatemp-range --min-tokens --min-new-tokens --no-repeat-ngram-size --samplers --top-a --epsilon-cutoff"
    ),
    "the command line lacks it; in Python write logit_bias={token: bias} or banned=[...]": "--logit-bias --bad-words "
    "--bad-words-ids -l",
}
"""Hint -> flags of other tools, or of other commands, that it answers."""

COMMANDS = {
    "generate": "run complete completion-text write predict infer inference text",
    "chat": "repl talk interactive console chat-cli",
    "methods": "list ls drafters show",
    "bench": "benchmark measure perf speed race eval",
    "check": "verify test validate conformance",
    "advise": "advice advisor recommend suggest worth",
    "calibrate": "tune autotune profile calibration",
    "dict": "dictionary dictionaries dictspec",
    "datastore": "rest store corpus",
    "train": "finetune fine-tune distill",
    "serve": "server api rpc openai",
    "demo": "start quickstart example try",
    "--version": "version",
    "--help": "help",
}
"""A command of ours -> names that it has elsewhere."""
NO_COMMAND = {
    "a model needs no command: give its folder or name as --model": "pull install download load models model",
    "write 'paceline bench time drafting', or 'forwards' for --forwards": "draft-cost",
    "write 'paceline bench time forwards'": "forwards",
    "write 'paceline bench time overhead'": "overhead",
}


def _turned(table: Mapping[str, str]) -> dict[str, list[str]]:
    """Word -> what it stands under, in order."""
    found: dict[str, list[str]] = {}
    for answer, words in table.items():
        for word in words.split():
            found.setdefault(word, []).append(answer)
    return found


OURS, SAID = _turned(WRITE), _turned(SAY)
COMMAND_OURS, COMMAND_SAID = _turned(COMMANDS), _turned(NO_COMMAND)


def unknown_flag(given: Sequence[str], flags: Sequence[str]) -> str | None:
    """The first argument that is written like a flag and is none of ``flags``; a flag's value is never one."""
    for one in given:
        if one == "--":
            return None
        if not one.startswith("-") or one == "-" or " " in one or NUMBER.match(one):
            continue
        name = one.partition("=")[0]
        short = not name.startswith("--") and name[:2] in flags and name not in OURS and name not in SAID
        if name not in flags and not short:
            return name
    return None


def about_flag(name: str, flags: Sequence[str], elsewhere: Mapping[str, Sequence[str]]) -> str:
    """Advice about a flag that is none of ``flags``. ``elsewhere`` has the flags of the other commands."""
    plain = f"--{name.lstrip('-').replace('_', '-')}"
    if plain in flags and plain != name:
        return f"there is no {name}; write {plain}"
    for spelled in (name, plain):
        for ours in OURS.get(spelled, ()):
            if ours in flags:
                return f"there is no {name}; write {ours}"
        for sentence in SAID.get(spelled, ()):
            return f"there is no {name}: {sentence}"
    if close := difflib.get_close_matches(plain, flags, n=1, cutoff=CLOSE):
        return f"there is no {name}; did you mean {close[0]}?"
    if homes := [command for command, its in elsewhere.items() if plain in its]:
        return f"there is no {name} here; {' and '.join(homes[:2])} {'has' if len(homes) == 1 else 'have'} it"
    return f"there is no {name}; --help lists what there is"


def as_argument(name: str, given: Sequence[str], parser: argparse.ArgumentParser) -> str | None:
    """Advice if a flag has the name of the command's last argument, which is given without a flag."""
    last = next((action for action in reversed(parser._actions) if not action.option_strings), None)
    flag = name.partition("=")[0]
    if last is None or flag != f"--{str(last.metavar).lower()}" or flag in OURS or flag in SAID:
        return None
    place = next(number for number, one in enumerate(given) if one.partition("=")[0] == flag)
    _, equals, value = given[place].partition("=")
    behind = place + (1 if equals else 2)
    values = [value] if equals else given[place + 1 : behind]
    written = shlex.join([*given[:place], *given[behind:], *(values or [str(last.metavar)])])
    return f"{last.metavar} is written without {flag} here: {parser.prog} {written}"


def about_command(name: str, commands: Sequence[str]) -> str:
    """Advice about a command that is none of ``commands``."""
    said = f"there is no command {name!r}"
    word = name.lower()
    for sentence in COMMAND_SAID.get(word, ()):
        return f"{said}: {sentence}"
    for ours in COMMAND_OURS.get(word, ()):
        if ours in commands or ours.startswith("--"):
            return f"{said}; write {ours}"
    if close := difflib.get_close_matches(word, commands, n=1, cutoff=0.6):
        return f"{said}; did you mean {close[0]}?"
    return f"{said}; choose {', '.join(commands)}"


def hinted() -> Iterator[str]:
    """Every flag that there is a hint for."""
    yield from dict.fromkeys([*OURS, *SAID])


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """All flags of a command."""
    return [flag for action in parser._actions for flag in action.option_strings]
