"""The continuous-batching engine: requests take free rows of one compiled program.

config       the sizes that are fixed when the programs are compiled
scheduler    which request has which row: a plain state machine
versions     which policy versions must stay alive: as plain
rows         the per-row numbers, on the host and on the device
cache        keys and values of every row
state        what lives on the device between two dispatches
prefill      prompts into the cache, several rows a dispatch
options      what every row asks of its draws, on the host and on the device
logits       how one token is drawn
penalties    what changes logits before the temperature
truncate     which tokens top-k, top-p and min-p leave
inverse_cdf  a token from a distribution and one uniform number
decode       several tokens of every row a dispatch
programs     everything compiled ahead of time, so that nothing compiles later
engine       the loop of the device thread: one `step` is a prefill and a decode of each version
service      the bridge between trio and the device thread
"""
