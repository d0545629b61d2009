"""Inside transformers: ``model.generate(**inputs, custom_generate=paceline.custom_generate("lookup"))``.

`generate` prepares everything as always: generation config, logits processors, stopping criteria, padding. Then it
hands them to the callable, which writes the rows with our engine and gives back what transformers would have given.
"""

from paceline.integrations.transformers.call import CustomGenerate, custom_generate

__all__ = ["CustomGenerate", "custom_generate"]
