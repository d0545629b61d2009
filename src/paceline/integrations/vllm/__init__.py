"""Our drafts inside vLLM: `proposer` is the class that vLLM makes, `texts` follows its requests, `settings` is what the
class is given, `gaps` how long its steps took. Nothing here imports vLLM.

vllm serve MODEL --speculative-config '{"method": "custom_class", "model": "paceline.integrations.vllm.Proposer", ...}'
"""

from paceline.integrations.vllm.proposer import Proposer

__all__ = ["Proposer"]
