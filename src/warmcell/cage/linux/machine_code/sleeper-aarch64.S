// As sleeper_x86_64.S.

        .text
        mov     x8, 167                         // prctl(PR_SET_DUMPABLE, 0)
        mov     x0, 4
        mov     x1, 0
        svc     0
        mov     x8, 57                          // close(1)
        mov     x0, 1
        svc     0
        mov     x8, 63                          // read(0, stack, 1)
        mov     x0, 0
        mov     x1, sp
        mov     x2, 1
        svc     0
        mov     x8, 94                          // exit_group(0)
        mov     x0, 0
        svc     0
