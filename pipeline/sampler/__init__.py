"""The continuous-batching engine: requests take rows of one compiled program and pages of a cache.

config     the sizes that are fixed when the programs are compiled

On the host, plain state machines:
occupant   a request on its way, and what was sampled for it
sequence   the block table of one trajectory
pages      who holds which page
prefixes   which pages hold the start of which text
memory     what a request starts with, and what becomes of its pages
shards     which row and pages a request gets
lanes      which pieces of which texts one prefill dispatch works on
row_numbers  what the next dispatch is told about rows and their tables
scheduler  all of these together
versions   which policy versions must stay alive
stops      stop strings
options    what a request asks of its draws, as arrays of rows

On the device, pure functions:
rows       the per-row numbers, on the host and on the device
cache      pages of keys and values, and windows of them
attention_paths  how decoding reads the cache; attention_kernels: a platform's own kernels
state      what lives on the device between two dispatches
prefill    prompts into the cache, several lanes a dispatch
logits     how one token is drawn; penalties, truncate and inverse_cdf are its parts
reading    from a token to the next one's logits: by the cache, or from the whole text
decode     several tokens of every row a dispatch
transfer   whole pages to others, to the host and back; relocate calls it
layout     how all arrays lie on a mesh
programs   everything compiled ahead of time, so that nothing compiles later

engine     the loop of the device thread: one `step` is a prefill and a decode of each version
service    the bridge between trio and the device thread
many       several completions of one prompt
"""
