"""Files: the cache folder, reading what others wrote, writing, what is never written over, and who may write where."""

from paceline.files.cache import PLACE, folder
from paceline.files.ending import Terminated, terminable
from paceline.files.folders import check_folder, claimed
from paceline.files.locks import alone
from paceline.files.outputs import check_apart, check_output
from paceline.files.writing import Unwritable, named, partial, remove_left, workplace, write_whole

__all__ = [
    "PLACE",
    "Terminated",
    "Unwritable",
    "alone",
    "check_apart",
    "check_folder",
    "check_output",
    "claimed",
    "folder",
    "named",
    "partial",
    "remove_left",
    "terminable",
    "workplace",
    "write_whole",
]
