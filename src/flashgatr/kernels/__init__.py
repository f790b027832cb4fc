"""Fast versions of the network's blocks: functions of tensors and sizes, independent of modules.

Each is tested against its plain formula in `functional`. `block` runs a block on rows (see `rows`);
`cuda` and `cpu` contain the kernels of each device, behind one protocol (see `backend`).
"""
