# Completes command lines of toolcrib in fish. Use it as ~/.config/fish/completions/toolcrib.fish, or by this line in config.fish:
#   toolcrib completions fish | source
complete --command toolcrib --no-files --keep-order --arguments '(TOOLCRIB_COMPLETE=fish command toolcrib -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor) 2> /dev/null)'
