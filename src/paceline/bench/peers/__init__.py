"""Other libraries on the same weights and prompts, one file each: `registry` names them and makes them."""

from paceline.bench.peers.registry import PEERS, check_peer, make_peer
from paceline.bench.peers.weights import Weights

__all__ = ["PEERS", "Weights", "check_peer", "make_peer"]
