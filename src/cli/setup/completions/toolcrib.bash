# Completes command lines of toolcrib in bash. Use it by this line in ~/.bashrc:
#   source <(toolcrib completions bash)
_toolcrib() {
    local word=${COMP_WORDS[COMP_CWORD]} line
    # `=` and `:` end words in bash: behind one of them the word itself is that character, and $2 is empty.
    if [[ -n $2 || $word != [=:]* ]]; then
        word=$2
    fi
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(TOOLCRIB_COMPLETE=bash command toolcrib -- "${COMP_WORDS[@]:0:COMP_CWORD}" "$word" 2> /dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/:] ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
# bash before 4.4 cannot keep the order.
complete -o bashdefault -o default -o nosort -F _toolcrib toolcrib 2> /dev/null ||
    complete -o bashdefault -o default -F _toolcrib toolcrib
