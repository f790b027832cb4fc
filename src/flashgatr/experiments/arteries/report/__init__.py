"""The report on artery runs.

    report.json     all numbers: of runs, of groups (mean, standard error over seeds), of the paper
    figure.png      ε against the number of training meshes
    curves.png      validation error during training
    histograms.png  ε of every test mesh
    scatter.png, maps.png  true and predicted stress on a few walls

`contents.REPORT` is the experiment's report. A group is a model with its settings and a number of
training meshes.
"""
