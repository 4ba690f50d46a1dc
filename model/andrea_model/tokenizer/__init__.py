"""Text to token ids and back: Harris segments with byte fallback, and GPT-2's byte-level BPE."""

from andrea_model.tokenizer.files import existing_tokenizer, find_tokenizer, load_tokenizer
from andrea_model.tokenizer.harris import DEFAULT_ID_LAYOUT, ID_LAYOUTS, HarrisTokenizer
from andrea_model.tokenizer.protocol import Tokenizer
from andrea_model.tokenizer.trainer import train_segments
from andrea_model.tokenizer.vocabulary import check_vocabulary

__all__ = [
    "DEFAULT_ID_LAYOUT",
    "ID_LAYOUTS",
    "HarrisTokenizer",
    "Tokenizer",
    "check_vocabulary",
    "existing_tokenizer",
    "find_tokenizer",
    "load_tokenizer",
    "train_segments",
]
