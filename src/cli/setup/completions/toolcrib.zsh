#compdef toolcrib
# Completes command lines of toolcrib in zsh. Use it as the file _toolcrib in a folder of $fpath, or by these lines in ~/.zshrc:
#   autoload -Uz compinit && compinit
#   source <(toolcrib completions zsh)
_toolcrib() {
    local line value entry
    local -a whole begun
    for line in "${(@f)$(TOOLCRIB_COMPLETE=zsh command toolcrib -- \
        "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)}"; do
        value=${line%%$'\t'*}
        [[ -n $value ]] || continue
        entry=${${value//\\/\\\\}//:/\\:}
        [[ $line == *$'\t'* ]] && entry+=":${line#*$'\t'}"
        # No space follows what is not yet a whole word.
        if [[ $value == *[=/] ]]; then begun+=("$entry"); else whole+=("$entry"); fi
    done
    local found=1
    (( $#whole )) && _describe -V 'value' whole && found=0
    (( $#begun )) && _describe -V 'value' begun -S '' && found=0
    return found
}
# As a file of $fpath this is the body of the function at its first call.
if [[ ${funcstack[1]} == _toolcrib ]]; then
    _toolcrib "$@"
else
    compdef _toolcrib toolcrib
fi
