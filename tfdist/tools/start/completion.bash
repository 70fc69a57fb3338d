# Bash splits words at "=": the words are taken from the line, and the part before the last "=" is removed again.
_tfdist() {
    local line="${COMP_LINE:0:$COMP_POINT}" last
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *" " ]] && words+=("")
    last="${words[${#words[@]}-1]}"
    local IFS=$'\n' prefix=""
    [[ "$last" == *=* ]] && prefix="${last%=*}="
    COMPREPLY=($(tfdist completion words "${words[@]:1}" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" != *= ]] && COMPREPLY=("${COMPREPLY[0]} ")
}
complete -o nospace -F _tfdist tfdist
