"""Counting tokens with a model's own vocabulary, offline.

The rule: a count is exact or not given. Byte-level BPE vocabularies whose pre-tokenizer is in the table are counted
(package tokenizers); for any other the answer is None, never a guess.

Source of the pre-tokenizers: llama.cpp's llama-vocab.cpp (build 11549), by their names in `tokenizer.ggml.pre`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gguf_info.model import Summary

__all__ = ["token_counter"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
)
# Expressions that split the text, one after the other.
_PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",),
    "gpt-4o": (rf"{_WORDS_4O}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",),
}
# Vocabularies that ask for a first token unless the file says otherwise, and take a word that is a token as it is.
_ADD_BOS = _IGNORE_MERGES = ("llama-bpe",)
_CONTROL, _USER_DEFINED = 3, 4


def token_counter(summary: Summary) -> Callable[[str], int] | None:
    """A function that counts the tokens of a prompt as the server would, or None when that cannot be done exactly.

    Special tokens in the text count as one. A first token that the vocabulary asks for is included, once if the prompt
    begins with it already (llama.cpp's common/chat.cpp takes that away).

    Raises:
        GGUFError: The file has changed.
    """
    pre = str(summary.metadata.get("tokenizer.ggml.pre"))
    expressions = _PRE_TOKENIZERS.get(pre)
    if summary.metadata.get("tokenizer.ggml.model") != "gpt2" or expressions is None:
        return None
    try:
        import tokenizers
    except ImportError:
        return None
    tokenizer = _tokenizer(tokenizers, summary, expressions, ignore_merges=pre in _IGNORE_MERGES)
    adds_bos = summary.metadata.get("tokenizer.ggml.add_bos_token", pre in _ADD_BOS) is True
    number = _bos_number(summary)
    bos = None if number is None else tokenizer.id_to_token(number)

    def count(text: str) -> int:
        first = int(adds_bos and not (bos and text.startswith(bos)))
        return first + len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def _bos_number(summary: Summary) -> int | None:
    number = summary.metadata.get("tokenizer.ggml.bos_token_id")
    return number if isinstance(number, int) and 0 <= number < 2**32 else None


def _tokenizer(tokenizers: Any, summary: Summary, expressions: tuple[str, ...], *, ignore_merges: bool) -> Any:
    header = summary.headers[0]
    tokens = [str(token) for token in header.read_array("tokenizer.ggml.tokens")]
    kinds = list(header.read_array("tokenizer.ggml.token_type"))
    merges = [tuple(str(merge).split(" ", 1)) for merge in header.read_array("tokenizer.ggml.merges")]
    known = {token: number for number, token in enumerate(tokens)}
    usable = [pair for pair in merges if len(pair) == 2 and pair[0] in known and pair[1] in known]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=known,
            merges=[pair for pair in usable if "".join(pair) in known],
            ignore_merges=ignore_merges,
        )
    )
    split = [
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated") for expression in expressions
    ]
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*split, byte_level])
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True) for token in special])
    return tokenizer
