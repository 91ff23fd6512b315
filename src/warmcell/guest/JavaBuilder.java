import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.Attributes;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.jar.Manifest;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import com.sun.source.tree.ClassTree;
import com.sun.source.tree.CompilationUnitTree;
import com.sun.source.tree.Tree;
import com.sun.source.util.JavacTask;

/** Runs in the cage. Makes a jar of one source file whose main class is its first class, as `java Main.java` does. */
class JavaBuilder {
    static final JavaCompiler COMPILER = ToolProvider.getSystemJavaCompiler();

    public static void main(String[] args) throws Exception {
        JavaFileObject source = sourceFrom(Path.of(args[0]));
        Path classes = Files.createTempDirectory("classes");
        List<String> options = List.of("-proc:none", "-d", classes.toString());
        if (!COMPILER.getTask(null, null, null, options, null, List.of(source)).call()) System.exit(1);
        pack(classes, firstClass(source), Path.of(args[1]));
    }

    /** The file may be called Main.java whatever the name of its public class. */
    static JavaFileObject sourceFrom(Path file) throws Exception {
        String text = Files.readString(file);
        return new SimpleJavaFileObject(file.toUri(), JavaFileObject.Kind.SOURCE) {
            @Override public CharSequence getCharContent(boolean ignoreErrors) { return text; }
            @Override public boolean isNameCompatible(String name, Kind kind) { return kind == Kind.SOURCE; }
            @Override public String getName() { return file.getFileName().toString(); }
        };
    }

    static String firstClass(JavaFileObject source) throws Exception {
        var silent = new DiagnosticCollector<JavaFileObject>();
        var task = (JavacTask) COMPILER.getTask(null, null, silent, List.of("-proc:none"), null, List.of(source));
        for (CompilationUnitTree unit : task.parse())
            for (Tree type : unit.getTypeDecls())
                if (type instanceof ClassTree) {
                    String name = ((ClassTree) type).getSimpleName().toString();
                    return unit.getPackageName() == null ? name : unit.getPackageName() + "." + name;
                }
        System.err.println("error: no class declared in source file");
        System.exit(1);
        return null;
    }

    static void pack(Path classes, String main, Path target) throws Exception {
        Manifest manifest = new Manifest();
        manifest.getMainAttributes().put(Attributes.Name.MANIFEST_VERSION, "1.0");
        manifest.getMainAttributes().put(Attributes.Name.MAIN_CLASS, main);
        List<Path> files;
        try (Stream<Path> found = Files.walk(classes)) {
            files = found.filter(Files::isRegularFile).sorted().collect(Collectors.toList());
        }
        try (OutputStream out = Files.newOutputStream(target); JarOutputStream jar = new JarOutputStream(out, manifest)) {
            for (Path file : files) {
                jar.putNextEntry(new JarEntry(classes.relativize(file).toString()));
                Files.copy(file, jar);
            }
        }
    }
}
