# Carries out a list of system calls. No decision is made here: what may fail, and what must come back, is in the list.
#
# A step is eleven words of 8 bytes: number; six arguments; which of them are places in `values`; the result that must
# come back (-1: any); the error that is not a failure (as the kernel returns it, 0: none); where to put the result (32
# bits, 0: nowhere).  call_list.py writes the list; tests/unit/cage/test_cage_call_list.py assembles this file and compares.

        .intel_syntax noprefix
        .text

# long run(step *steps, long count, long *values, long base): how many steps were carried out.
run:    push    rbx
        push    rbp
        push    r12
        push    r13
        push    r14
        push    r15
        mov     rbx, rdi
        mov     r12, rsi
        mov     r13, rdx
        lea     r14, [rdx + rcx * 8]            # results follow the values that were given
        xor     ebp, ebp
next:   cmp     rbp, r12
        je      done
        mov     r15, [rbx + 56]
        sub     rsp, 48
        xor     ecx, ecx
fetch:  mov     rax, [rbx + rcx * 8 + 8]
        bt      r15, rcx
        jnc     plain
        mov     rax, [r13 + rax * 8]
plain:  mov     [rsp + rcx * 8], rax
        inc     ecx
        cmp     ecx, 6
        jne     fetch
        pop     rdi
        pop     rsi
        pop     rdx
        pop     r10
        pop     r8
        pop     r9
        mov     rax, [rbx]
        syscall
        mov     [r14 + rbp * 8], rax
        mov     rcx, [rbx + 80]
        test    rcx, rcx
        jz      judge
        mov     [rcx], eax
judge:  cmp     rax, -4095
        jae     error
        mov     rcx, [rbx + 64]
        cmp     rcx, -1
        je      good
        cmp     rcx, rax
        je      good
        jmp     done
error:  cmp     rax, [rbx + 72]
        jne     done
good:   add     rbx, 88
        inc     rbp
        jmp     next
done:   mov     rax, rbp
        pop     r15
        pop     r14
        pop     r13
        pop     r12
        pop     rbp
        pop     rbx
        ret

# long spawn(long flags, void *stack, int *pidfd, long arguments[4]): a child that runs a list, on a stack of its own.
        .balign 16
spawn:  push    rbx
        mov     rbx, rcx
        xor     r10d, r10d
        xor     r8d, r8d
        mov     eax, 56                         # clone
        syscall
        test    rax, rax
        jz      child
        pop     rbx
        ret
child:  mov     rdi, [rbx]
        mov     rsi, [rbx + 8]
        mov     rdx, [rbx + 16]
        mov     rcx, [rbx + 24]
        call    run
        mov     edi, 1
        mov     eax, 231                        # exit_group
        syscall
