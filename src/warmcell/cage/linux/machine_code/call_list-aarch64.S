// Carries out a list of system calls; call_list_x86_64.S says how a step looks.

        .text

// long run(step *steps, long count, long *values, long base): how many steps were carried out.
run:    stp     x29, x30, [sp, -64]!
        stp     x19, x20, [sp, 16]
        stp     x21, x22, [sp, 32]
        stp     x23, x24, [sp, 48]
        mov     x19, x0
        mov     x20, x1
        mov     x21, x2
        add     x22, x2, x3, lsl 3              // results follow the values that were given
        mov     x23, 0
next:   cmp     x23, x20
        b.eq    done
        ldr     x24, [x19, 56]
        ldp     x0, x1, [x19, 8]
        ldp     x2, x3, [x19, 24]
        ldp     x4, x5, [x19, 40]
        tbz     x24, 0, second
        ldr     x0, [x21, x0, lsl 3]
second: tbz     x24, 1, third
        ldr     x1, [x21, x1, lsl 3]
third:  tbz     x24, 2, fourth
        ldr     x2, [x21, x2, lsl 3]
fourth: tbz     x24, 3, fifth
        ldr     x3, [x21, x3, lsl 3]
fifth:  tbz     x24, 4, sixth
        ldr     x4, [x21, x4, lsl 3]
sixth:  tbz     x24, 5, enter
        ldr     x5, [x21, x5, lsl 3]
enter:  ldr     x8, [x19]
        svc     0
        str     x0, [x22, x23, lsl 3]
        ldr     x9, [x19, 80]
        cbz     x9, judge
        str     w0, [x9]
judge:  cmn     x0, 4095
        b.hs    error
        ldr     x9, [x19, 64]
        cmn     x9, 1
        b.eq    good
        cmp     x9, x0
        b.eq    good
        b       done
error:  ldr     x9, [x19, 72]
        cmp     x9, x0
        b.ne    done
good:   add     x19, x19, 88
        add     x23, x23, 1
        b       next
done:   mov     x0, x23
        ldp     x23, x24, [sp, 48]
        ldp     x21, x22, [sp, 32]
        ldp     x19, x20, [sp, 16]
        ldp     x29, x30, [sp], 64
        ret

// long spawn(long flags, void *stack, int *pidfd, long arguments[4]): a child that runs a list, on a stack of its own.
        .balign 16
spawn:  stp     x29, x30, [sp, -32]!
        str     x19, [sp, 16]
        mov     x19, x3
        mov     x3, 0
        mov     x4, 0
        mov     x8, 220                         // clone
        svc     0
        cbz     x0, child
        ldr     x19, [sp, 16]
        ldp     x29, x30, [sp], 32
        ret
child:  ldp     x0, x1, [x19]
        ldp     x2, x3, [x19, 16]
        bl      run
        mov     x0, 1
        mov     x8, 94                          // exit_group
        svc     0
