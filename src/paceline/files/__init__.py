"""Files: the cache folder, reading untrusted files, writing whole files by one process at a time, SIGTERM."""

from paceline.files.cache import CACHE, cache_folder, cached, cached_path, keep_record, kept_record
from paceline.files.ending import Terminated, terminable
from paceline.files.locks import exclusive
from paceline.files.outputs import check_apart, check_folder, check_output
from paceline.files.writing import claimed, naming, partial, remove_left, workplace, write_whole

__all__ = [
    "CACHE",
    "Terminated",
    "cache_folder",
    "cached",
    "cached_path",
    "check_apart",
    "check_folder",
    "check_output",
    "claimed",
    "exclusive",
    "keep_record",
    "kept_record",
    "naming",
    "partial",
    "remove_left",
    "terminable",
    "workplace",
    "write_whole",
]
