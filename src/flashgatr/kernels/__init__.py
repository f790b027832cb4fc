"""Fast versions of the network's blocks: functions of tensors and sizes that know no module.

Each has a plain formula in `functional` beside it and is tested against it. `block` runs a block on rows
(see `rows`); `cuda` and `cpu` hold the kernels of each device behind one protocol (see `backend`).
"""
