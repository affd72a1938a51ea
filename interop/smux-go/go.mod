module kcpx.invalid/smux-peer

go 1.26.2

require github.com/xtaci/smux v1.5.56
