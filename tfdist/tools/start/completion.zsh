_tfdist() {
    local -a found
    found=("${(@f)$(tfdist completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -Q -S '' -- ${(@)found:#}
}
compdef _tfdist tfdist
