"""Between tokenizers by bytes: none lost, none added, canonical wherever that is possible, and never stuck."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import accumulate, permutations

import pytest

from paceline.errors import InputError
from paceline.targets.pocket.bundle import BundledTokenizer
from paceline.translate import Bridge, Follower, Habit, Lattice, Spellings, TranslatedDraft, Translation, canonical
from paceline.vocabulary import Vocabulary
from tokenizer_kinds import FOR_TEXT, OPAQUE, REAL, REAL_NAMES, STREAMABLE, vocabulary_of

LANGUAGES = ("pl", "uk", "crh-Latn", "en", "fr", "ja", "zh")
ODD = {
    "emoji": "👩‍👩‍👧‍👦 hello 🇵🇱🇺🇦 e\u0301 n\u0303 ▁literal <0x41> ▁▁ x" * 6,
    "code": "def f(x):\n    if x >  3:\n\t\treturn {'a': [1,2,  3]}\n\n\n# żółw\r\n" * 6,
}
BUNDLED = ("pocket", "pocket-foreign")
PAIRS = [*permutations(REAL_NAMES, 2), BUNDLED, BUNDLED[::-1]]
needs_data = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data beside the checkout")


@cache
def vocabulary(name: str) -> Vocabulary:
    return Vocabulary(BundledTokenizer(name)) if name in BUNDLED else vocabulary_of(name)


@cache
def spellings(name: str) -> Spellings:
    return Spellings(vocabulary(name))


@cache
def sample(language: str) -> bytes:
    if language in ODD:
        return ODD[language].encode()
    file = sorted((REAL.parent / "text" / language).glob("*.txt"))[0]
    with file.open("rb") as stream:
        stream.seek(100_000)
        return stream.read(2500).decode(errors="ignore")[1:700].encode()


def cuts(data: bytes, rng: random.Random, most: int) -> list[bytes]:
    """The data in pieces of 1 to ``most`` bytes."""
    pieces, start = list[bytes](), 0
    while start < len(data):
        end = start + rng.randint(1, most)
        pieces.append(data[start:end])
        start = end
    return pieces


# a vocabulary as bytes


@needs_data
@pytest.mark.parametrize("name", REAL_NAMES)
@pytest.mark.parametrize("language", [*LANGUAGES, *ODD])
def test_any_bytes_are_spelled_as_they_are_also_half_characters(name: str, language: str) -> None:
    data, rng, made = sample(language), random.Random(language), spellings(name)
    assert made.spell(made.encode(data)) == data
    for _ in range(40):
        start = rng.randrange(len(data))
        piece = data[start : start + rng.randint(1, 30)]
        assert made.spell(made.encode(piece)) == piece


@needs_data
@pytest.mark.parametrize("name", REAL_NAMES)
@pytest.mark.parametrize("language", [*LANGUAGES, "code"])
def test_whole_texts_have_the_tokens_of_the_tokenizer_itself(name: str, language: str) -> None:
    """But for the beginning, before which SentencePiece puts a space."""
    data = sample(language)
    own = vocabulary(name).encode(data.decode(), add_special=False).tolist()
    assert spellings(name).encode(data)[-50:] == own[-50:]


@pytest.mark.parametrize("name", FOR_TEXT)
def test_made_tokenizers_spell_their_texts(name: str) -> None:
    made = spellings(name)
    for token in range(vocabulary(name).size):
        assert made.spell(made.encode(made.of[token])) == made.of[token]


@needs_data
@pytest.mark.parametrize("name", [*FOR_TEXT, *REAL_NAMES, *BUNDLED])
def test_of_tokens_that_spell_the_same_the_tokenizer_writes_the_one_that_bytes_lead_to(name: str) -> None:
    """SentencePiece has a token for every byte beside the pieces: ``<0x79>`` beside ``y``."""
    made = spellings(name)
    for spelled, count in Counter(filter(None, made.of)).items():
        assert count == 1 or made.encode(spelled) == [made.id_of(spelled)], spelled


@needs_data
@pytest.mark.parametrize(
    ("target", "drafter"),
    [BUNDLED, BUNDLED[::-1], ("bielik-v2", "bielik-v3-APT4"), ("mistral-v3", "gpt2"), ("gpt2", "mistral-v3")],
)
def test_a_text_of_shared_tokens_is_drafted_token_by_token(target: str, drafter: str) -> None:
    """An oracle that drafts the text's own next token by ``tli`` is wrong only where the drafter cannot spell it."""
    bridge = Bridge(vocabulary(target), vocabulary(drafter))
    drafted, known = dict(zip(*bridge.shared, strict=True)), set(bridge.drafter.of)
    for language in (*LANGUAGES, *ODD):
        for token in bridge.target.encode(sample(language)):
            spelled = bridge.target.of[token]
            assert (token in drafted) == (spelled in known)
            assert spelled not in known or bridge.drafter.of[drafted[token]] == spelled


def test_special_tokens_spell_nothing_and_no_bytes_lead_to_one() -> None:
    for name in ("byte-level", *BUNDLED):
        specials = vocabulary(name).specials
        assert specials
        assert not any(spellings(name).of[token] for token in specials)
        for token in specials:
            assert specials.isdisjoint(spellings(name).encode(vocabulary(name).token_bytes(token)))


def test_bytes_that_a_vocabulary_lacks_end_the_result() -> None:
    """A vocabulary of words has no way to spell anything else."""
    name = next(name for name in STREAMABLE if spellings(name).id_of(b"\xf0") is None)
    made = spellings(name)
    assert made.spell(made.encode(b"\xf0\x9f")) == b""


@pytest.mark.parametrize("name", OPAQUE)
def test_an_opaque_tokenizer_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(InputError, match="not known token by token, so no bytes can be translated"):
        Spellings(vocabulary(name))


def test_completions_begin_with_the_bytes_and_go_on() -> None:
    made = spellings("pocket")
    for data in (b" p", b"a", b" prz", b"\xc5"):
        found = made.completing(data, 5)
        assert found == sorted(found)
        assert all(made.of[token].startswith(data) and len(made.of[token]) > len(data) for token in found)
        every = [i for i, spelled in enumerate(made.of) if spelled.startswith(data) and len(spelled) > len(data)]
        assert found == [token for token in every if made.id_of(made.of[token]) == token][:5]


# a text in other tokens


def placed(made: Spellings, ids: list[int]) -> set[tuple[int, int]]:
    """Tokens and the bytes before them."""
    ends = accumulate((len(made.of[token]) for token in ids), initial=0)
    return set(zip(ends, ids, strict=False))


@needs_data
@pytest.mark.parametrize(("target", "drafter"), PAIRS)
def test_a_text_is_followed_without_losing_a_byte_and_ends_canonical(target: str, drafter: str) -> None:
    rng = random.Random(target + drafter)
    into, different, tokens = spellings(drafter), 0, 0
    for language in (*LANGUAGES, *ODD):
        ids = spellings(target).encode(sample(language))
        follower, start = Follower(into), 0
        while start < len(ids):
            count = rng.randint(1, 6)
            before = list(follower.ids)
            kept = follower.extend(spellings(target).spell(ids[start : start + count]))
            start += count
            assert follower.ids[:kept] == before[:kept]
            assert len(before) - kept <= 20, "only what the boundary touches is read again"
            assert into.spell(follower.ids) == bytes(follower.text)
        whole = into.encode(bytes(follower.text))
        different += len(placed(into, whole) ^ placed(into, follower.ids))
        tokens += len(whole)
    assert different <= tokens / 500


def test_a_text_that_begins_with_a_prompt_goes_on_behind_it() -> None:
    """The prompt has a special token and a space that is no part of the text, as SentencePiece gives it."""
    into = spellings("pocket")
    special = min(vocabulary("pocket").specials)
    prompt = [special, *into.encode(b" Once upon")]
    follower = Follower(into, prompt, b"Once upon")
    kept = follower.extend(b" a time")
    assert follower.ids[:kept] == prompt[:kept]
    assert follower.ids[0] == special
    assert into.spell(follower.ids) == b" Once upon a time"
    assert bytes(follower.text) == b"Once upon a time"


# drafted bytes


def taken(tree: Translation, tokens: list[int]) -> int:
    """How many of these tokens the tree has from the root on."""
    node = -1
    for count, token in enumerate(tokens):
        below = [n for n, parent in enumerate(tree.parents) if parent == node and tree.tokens[n] == token]
        if not below:
            return count
        assert len(below) == 1, "siblings differ"
        node = below[0]
    return len(tokens)


def context5(name: str, before: list[int], data: bytes) -> list[int]:
    """The paper's rule: the last five tokens and the draft are encoded, and as many tokens taken off as those five
    have by themselves."""
    own, prefix = vocabulary(name), spellings(name).spell(before[-5:])
    alone = own.encode(prefix.decode(errors="replace"), add_special=False)
    return own.encode((prefix + data).decode(errors="replace"), add_special=False)[len(alone) :].tolist()


class Oracle:
    """A drafter that always knows the next bytes, by its four next tokens."""

    def __init__(self, target: str, drafter: str, language: str, split: float, seed: int = 0) -> None:
        self.made, self.other, self.name = spellings(target), spellings(drafter), target
        self.rng = random.Random(f"{target}{drafter}{language}{seed}")
        self.data, self.ids = sample(language), list[int]()
        for token in self.made.encode(self.data):
            spelled = self.made.of[token]
            if len(spelled) > 1 and self.rng.random() < split:
                cut = self.rng.randrange(1, len(spelled))
                self.ids += self.made.encode(spelled[:cut]) + self.made.encode(spelled[cut:])
            else:
                self.ids.append(token)
        self.habit = Habit()
        self.true = self.lattice = self.naive = self.context = self.nodes = self.context_nodes = 0

    def ride(self, rounds: int) -> None:
        for _ in range(rounds):
            self.round(self.rng.randrange(10, len(self.ids) - 10))

    def round(self, begun: int) -> None:
        before, rest = self.ids[:begun], self.data[len(self.made.spell(self.ids[:begun])) :]
        drafted = self.other.encode(rest[:80])[:4]
        data = self.other.spell(drafted)
        true, size = list[int](), 0
        for token in self.ids[begun:]:
            size += len(self.made.of[token])
            if size > len(data):
                break
            true.append(token)
        window = self.made.spell(before[-6:])
        lattice = Lattice(self.made, window, TranslatedDraft.of((self.other.of[token], -0.1) for token in drafted))
        tree = lattice.tree(2 * len(canonical(self.made, window, data)), self.habit.leaving)
        assert tree.tokens, "no round stalls"
        context = context5(self.name, before, data)
        self.true += len(true)
        self.nodes, self.context_nodes = self.nodes + len(tree.tokens), self.context_nodes + len(context)
        self.lattice += taken(tree, true)
        self.context += common(true, context)
        self.naive += common(true, self.made.encode(data))
        self.habit.learn(self.made, window, self.ids[begun : begun + 4])


def common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@needs_data
@pytest.mark.parametrize("split", [0.0, 0.05])
@pytest.mark.parametrize("target", [*REAL_NAMES, *BUNDLED])
def test_what_an_oracle_drafts_is_in_the_lattice_and_more_of_it_than_by_other_rules(target: str, split: float) -> None:
    pairs = [pair for pair in PAIRS if pair[0] == target]
    oracles = [Oracle(*pair, language, split) for pair in pairs for language in (*LANGUAGES, *ODD)]
    for oracle in oracles:
        oracle.ride(4 if len(pairs) > 1 else 20)
    true, lattice, naive, context = (
        sum(getattr(oracle, name) for oracle in oracles) for name in ("true", "lattice", "naive", "context")
    )
    if not split:
        assert lattice >= 0.99 * true
    assert lattice >= max(naive, context)
    assert sum(oracle.nodes for oracle in oracles) <= 2.1 * sum(oracle.context_nodes for oracle in oracles)


@needs_data
@pytest.mark.parametrize(("target", "drafter"), [BUNDLED, ("bielik-v2", "qwen2-2.5-3"), ("llama3", "bielik-v3-APT4")])
def test_every_path_of_a_lattice_spells_the_drafted_bytes(target: str, drafter: str) -> None:
    made, other, rng = spellings(target), spellings(drafter), random.Random(3)
    for language in (*LANGUAGES, *ODD):
        data = sample(language)
        for _ in range(25):
            start = rng.randrange(len(data) - 40)
            drafted = other.encode(data[start : start + 30])[: rng.randint(1, 5)]
            spelled = other.spell(drafted)
            draft = TranslatedDraft.of((other.of[token], -rng.random()) for token in drafted)
            tree = Lattice(made, data[max(0, start - 12) : start], draft).tree(16, 0.1)
            paths = list[bytes]()
            for token, parent, score in zip(tree.tokens, tree.parents, tree.scores, strict=True):
                assert parent < len(paths)
                assert score < 0 or score == pytest.approx(0)
                path = (paths[parent] if parent >= 0 else b"") + made.of[token]
                assert spelled.startswith(path) or path.startswith(spelled)
                paths.append(path)
            assert tree.tokens
            assert len(set(zip(tree.tokens, tree.parents, strict=True))) == len(tree.tokens)


def test_a_token_that_would_reach_across_the_boundary_begins_at_it() -> None:
    made = spellings("pocket")
    [word] = [t for t in made.encode(b" time") if made.of[t] == b" time"]
    assert made.encode(b" time") == [word]
    for cut in range(1, 5):
        found = canonical(made, b" a" + b" time"[:cut], b" time"[cut:] + b" to")
        assert made.spell(found) == b" time"[cut:] + b" to"
        assert word not in found


def test_a_text_that_leaves_the_canonical_form_is_believed_to_do_it_again() -> None:
    made, habit = spellings("pocket"), Habit()
    first = habit.leaving
    for _ in range(40):
        habit.learn(made, b" a", made.encode(b" time") + made.encode(b" to"))
    assert habit.leaving < first
    split = made.encode(b" ti") + made.encode(b"me")
    for _ in range(40):
        habit.learn(made, b" a", split)
    assert habit.leaving > 5 * first


def test_scores_are_those_of_the_drafters_tokens_that_begin_in_a_node() -> None:
    made = spellings("pocket")
    tree = Lattice(made, b" a", TranslatedDraft.of([(b" ti", -1.0), (b"me", -0.5), (b" to", -0.25)])).tree(2, 1e-9)
    assert made.spell(tree.tokens[:1]) == b" time"
    assert tree.scores[0] == pytest.approx(-1.5, abs=1e-6)
    assert tree.scores[1] <= -0.25
